package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// maxRounds bounds how often the registry is looked at again because versions
// have come meanwhile.
const maxRounds = 20

// fleet is what has been packed of the formations so far.
type fleet struct {
	seen     map[string]bool    // formations whose state and draft are packed
	versions map[string]version // by <id>/<dir>
}

type version struct {
	sha256 string
	there  bool // it has files
}

// formations packs the formations and, last, the registry. Deploys go on
// meanwhile: the registry is copied until all versions that the copy names are
// packed. What was packed and is not named any more is to be dropped.
func (b *writer) formations() error {
	f := &fleet{seen: make(map[string]bool), versions: make(map[string]version)}
	for range maxRounds {
		copied := filepath.Join(b.scratch, "registry.db")
		if err := ignoreMissing(os.Remove(copied)); err != nil {
			return err
		}
		if err := registry.CopySQLite(b.ctx, filepath.Join(b.cfg.Home, registryName), copied); err != nil {
			return err
		}
		kept, err := registry.Inventory(b.ctx, copied)
		if err != nil {
			return err
		}
		missing, err := f.missing(kept, b.cfg.Formations)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return b.registry(f, kept, copied)
		}
		for _, id := range missing {
			if err := b.formation(f, id, kept); err != nil {
				return fmt.Errorf("formation %s: %w", id, err)
			}
		}
	}
	return errors.New("versions came faster than they could be packed; try again when fewer formations are being deployed")
}

// missing returns the formations of which something is to be packed: those that
// the registry names, and those whose directory holds a draft or the memory of a
// formation that the registry does not know.
func (f *fleet) missing(kept []registry.Kept, dir string) ([]string, error) {
	ids := make(map[string]bool)
	for _, k := range kept {
		v, ok := f.versions[k.ID+"/"+k.Dir]
		if ok && v.sha256 != k.SHA256 {
			return nil, fmt.Errorf("formation %s was deleted and deployed again meanwhile; try again", k.ID)
		}
		if !ok && !k.Staged || !f.seen[k.ID] {
			ids[k.ID] = true
		}
	}
	entries, err := os.ReadDir(dir)
	if ignoreMissing(err) != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !f.seen[e.Name()] {
			ids[e.Name()] = true
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// formation packs what is not packed yet of one formation.
func (b *writer) formation(f *fleet, id string, kept []registry.Kept) error {
	at := filepath.Join(b.cfg.Formations, id)
	name := path.Join(formationsDir, id)
	if info, err := os.Lstat(at); err == nil {
		if err := b.dir(source{name: name, info: info}); err != nil {
			return err
		}
	}
	for _, k := range kept {
		key := id + "/" + k.Dir
		if _, ok := f.versions[key]; ok || k.ID != id || k.Staged {
			continue
		}
		err := b.version(name, at, k.Dir)
		f.versions[key] = version{sha256: k.SHA256, there: err == nil}
		if ignoreMissing(err) != nil {
			return err
		}
	}
	if f.seen[id] {
		return nil
	}
	f.seen[id] = true
	if err := b.state(path.Join(name, "state"), filepath.Join(at, "state")); ignoreMissing(err) != nil {
		return err
	}
	return ignoreMissing(b.tree(path.Join(name, "draft"), filepath.Join(at, "draft"), nil))
}

// version packs one version's directory with those above it.
func (b *writer) version(name, at, dir string) error {
	if !fs.ValidPath(dir) {
		return fmt.Errorf("the registry names the directory %q", dir)
	}
	if parent := path.Dir(dir); parent != "." {
		info, err := os.Lstat(filepath.Join(at, parent))
		if err != nil {
			return err
		}
		if err := b.dir(source{name: path.Join(name, parent), info: info}); err != nil {
			return err
		}
	}
	return b.tree(path.Join(name, dir), filepath.Join(at, dir), nil)
}

// isCache tells whether the path in a state directory, which is the home of the
// programs that a formation starts, is of what they fetch again when it is gone.
// A part of that is worse than nothing: npx runs a package by a symbolic link,
// and a backup has no links.
func isCache(rel string) bool {
	top, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
	return top == ".cache" || top == ".npm"
}

// state packs a state directory: the databases first, as copies made by SQLite,
// then the files, so that a file which a row names is there.
func (b *writer) state(name, at string) error {
	if info, err := os.Lstat(at); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is no directory", at)
	}
	found, err := registry.FindSQLite(at)
	if err != nil {
		return err
	}
	skip := make(map[string]bool)
	for _, rel := range found {
		if isCache(rel) {
			continue
		}
		if err := b.parents(name, at, rel); err != nil {
			return err
		}
		err := b.checked(path.Join(name, rel), filepath.Join(at, rel))
		if problem := registry.Unreadable(err); problem != "" {
			// Some program's file must not keep all others from their backup.
			b.index.Damaged = append(b.index.Damaged, Damage{Path: path.Join(name, rel), Problem: problem})
			continue // it goes with the files, as it is
		}
		if ignoreMissing(err) != nil {
			return err
		}
		for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
			skip[rel+suffix] = true
		}
	}
	return b.tree(name, at, func(rel string) bool { return skip[rel] || isCache(rel) })
}

// parents packs the directories above a database, which comes before the rest.
func (b *writer) parents(name, at, rel string) error {
	var up []string
	for dir := path.Dir(rel); ; dir = path.Dir(dir) {
		up = append(up, dir)
		if dir == "." {
			break
		}
	}
	for _, dir := range slices.Backward(up) {
		info, err := os.Lstat(filepath.Join(at, dir))
		if err != nil {
			return ignoreMissing(err)
		}
		if err := b.dir(source{name: path.Join(name, dir), info: info}); err != nil {
			return err
		}
	}
	return nil
}

// registry packs the copy of the registry, whose versions are all packed.
func (b *writer) registry(f *fleet, kept []registry.Kept, copied string) error {
	named := make(map[string]bool)
	for _, k := range kept {
		named[k.ID+"/"+k.Dir] = true
		if !slices.Contains(b.index.Formations, k.ID) {
			b.index.Formations = append(b.index.Formations, k.ID)
		}
		switch {
		case k.Staged:
		case !f.versions[k.ID+"/"+k.Dir].there:
			b.note("%s of formation %s has no files in the home", k.Dir, k.ID)
		case k.Current:
			b.elsewhere(k.ID, filepath.Join(b.cfg.Formations, k.ID, k.Dir))
		}
	}
	for key, v := range f.versions {
		if !named[key] && v.there {
			b.index.Drop = append(b.index.Drop, path.Join(formationsDir, key))
		}
	}
	for id := range f.seen {
		if _, err := os.Lstat(filepath.Join(b.cfg.Formations, id)); errors.Is(err, fs.ErrNotExist) && !slices.Contains(b.index.Formations, id) {
			b.index.Drop = append(b.index.Drop, path.Join(formationsDir, id)) // deleted meanwhile
		}
	}
	slices.Sort(b.index.Drop)
	info, err := os.Lstat(filepath.Join(b.cfg.Home, registryName))
	if err != nil {
		return err
	}
	return b.database(registryName, copied, info)
}
