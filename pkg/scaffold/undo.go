package scaffold

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/agentformation/service/pkg/fault"
)

// undo takes back what was written so far, last first.
type undo struct{ steps []func() error }

func (u *undo) add(step func() error) { u.steps = append(u.steps, step) }

func (u *undo) run() error {
	var all []error
	for _, step := range slices.Backward(u.steps) {
		if err := step(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, fmt.Errorf("take it back: %w", err))
		}
	}
	u.steps = nil
	return errors.Join(all...)
}

// mkdirAll makes a directory and its parents.
func (u *undo) mkdirAll(dir string) error {
	var missing []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		missing = append(missing, at)
	}
	for _, at := range slices.Backward(missing) {
		if err := os.Mkdir(at, 0o755); err != nil { //nolint:gosec // a directory of sources, as mkdir makes it
			return fmt.Errorf("make the directory: %w", err)
		}
		u.add(func() error { return os.Remove(at) })
	}
	return nil
}

// write makes a file below dir with the directories that it needs. It is there
// as a whole or not at all, and never replaces one.
func (u *undo) write(dir, name string, text []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer root.Close()
	for _, parent := range parents(name) {
		err := root.Mkdir(parent, 0o755)
		if err == nil {
			u.add(func() error { return os.Remove(filepath.Join(dir, parent)) })
		} else if !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", parent, err)
		}
	}
	mode := fs.FileMode(0o644)
	if path.Ext(name) == ".py" {
		mode = 0o755
	}
	temp := path.Join(path.Dir(name), ".new-"+path.Base(name))
	if err := writeNew(root, temp, text, mode); err != nil {
		return err
	}
	if err := place(root, temp, name); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = fault.Errorf(fault.Conflict, "", "%s is there already; choose another name", filepath.Join(dir, name))
		}
		return errors.Join(err, root.Remove(temp))
	}
	u.add(func() error { return os.Remove(filepath.Join(dir, filepath.FromSlash(name))) })
	return nil
}

// place gives a file its name, unless another has it.
func place(root *os.Root, temp, name string) error {
	err := root.Link(temp, name)
	if err == nil {
		return root.Remove(temp)
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	// Some file systems know no links; between the look and the move somebody
	// else would have to choose the same name.
	if _, found := root.Lstat(name); !errors.Is(found, fs.ErrNotExist) {
		return fs.ErrExist
	}
	return root.Rename(temp, name)
}

// parents returns the directories of a slash path, the outermost first.
func parents(name string) []string {
	var out []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}

// writeNew writes a file of our own; one that a killed call left is replaced.
func writeNew(root *os.Root, name string, text []byte, mode fs.FileMode) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), root.Remove(name))
	}
	return nil
}

// replace gives a file another text in one step and keeps its mode.
func (u *undo) replace(file string, text []byte) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	swap := func(text []byte) error {
		root, err := os.OpenRoot(filepath.Dir(file))
		if err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		defer root.Close()
		name := filepath.Base(file)
		info, err := root.Lstat(name)
		if err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		temp := ".new-" + name
		if err := writeNew(root, temp, text, info.Mode().Perm()); err != nil {
			return err
		}
		// The mask of the process may have taken bits.
		if err := errors.Join(root.Chmod(temp, info.Mode().Perm()), root.Rename(temp, name)); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", file, err), root.Remove(temp))
		}
		return nil
	}
	if err := swap(text); err != nil {
		return err
	}
	u.add(func() error { return swap(old) })
	return nil
}
