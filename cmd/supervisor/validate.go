package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/redact"
)

// The words of finding.Severity.
const (
	severityError   = "error"
	severityWarning = "warning"
)

func (a *app) validateCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "validate [DIR|FILE|BUNDLE]",
		Short: "Check the files of a formation, without a supervisor",
		Long: `Check the files of a formation, without a supervisor and without a network.

One pass finds every fault, each with its place, the line it stands in and what
would be right. A fault keeps the formation from being deployed; a warning is
something that works but is probably not meant, or that has no effect in this
release. FILE is a manifest, a formation that stands in one file, or a file of a
formation, which is then checked as a whole. Without an argument it is the
directory that you are in.

Secrets need no values here; "supervisor secrets list" tells which are missing.

With --output json the result is a list of {severity, file, line, column, field,
msg, text, suggestion, error}: severity is error or warning, field the path of
the key, error the id of the rule. What may be a secret is shown as ***.

Exit codes: 0 valid, 1 faults (with --strict also warnings), 2 usage, 3 there is
nothing at that path.`,
		Example: `  supervisor validate hello
  supervisor validate hello --strict --output json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFile,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			return a.validateFormation(cmd.Context(), slices.Concat(args, []string{"."})[0], strict)
		}),
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	return cmd
}

// completeFile leaves the shell to complete one file or directory.
func (a *app) completeFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// verdict is the error of a formation that is not valid; what is wrong was
// printed before.
type verdict struct{ text string }

// Error returns how much was found, "" when programs read the result.
func (v *verdict) Error() string { return v.text }

func (a *app) validateFormation(ctx context.Context, path string, strict bool) error {
	s, err := openSubject(ctx, path)
	if err != nil {
		return err
	}
	f, warnings, err := manifest.Load(s.load)
	var faults *manifest.Faults
	if err != nil && !errors.As(err, &faults) {
		return errors.Join(err, s.close())
	}
	r := &findings{strict: strict, subject: s, secrets: redact.New()}
	if faults != nil {
		for _, one := range *faults {
			r.add(severityError, one)
		}
	}
	for _, one := range warnings {
		r.add(severityWarning, manifest.Fault(one))
	}
	r.sort()
	if err := errors.Join(a.printChecked(r), s.close()); err != nil {
		return err
	}
	if r.failed() {
		if a.json() {
			return &verdict{}
		}
		return &verdict{fmt.Sprintf("%s is not valid: %s", s.name, r.count())}
	}
	if a.json() {
		return nil
	}
	return a.result("%s", validText(s, f, r))
}

// validText tells what a valid formation has and needs.
func validText(s *subject, f *manifest.Formation, r *findings) string {
	text := fmt.Sprintf("%s is valid: %s, %s", s.name, count(len(f.Agents), "agent"), count(len(f.Files), "file"))
	if r.warnings > 0 {
		text += ", " + r.count()
	}
	var names []string
	for _, ref := range f.SecretRefs() {
		names = append(names, ref.Name)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > 0 {
		text += "; it uses the secrets " + strings.Join(names, ", ")
	}
	return text
}

// subject is what is checked.
type subject struct {
	name string // as the person calls it
	load string // what manifest.Load takes
	base string // put before the names of files; "" for those inside a bundle
	temp string // removed by close
}

func (s *subject) close() error {
	if s.temp == "" {
		return nil
	}
	return os.RemoveAll(s.temp)
}

// openSubject finds out what path is.
func openSubject(ctx context.Context, path string) (*subject, error) {
	info, err := statFormation(path)
	if err != nil {
		return nil, err
	}
	path = filepath.Clean(path)
	if info.IsDir() {
		return directory(path), nil
	}
	switch packed, err := isGzip(path); {
	case err != nil:
		return nil, err
	case packed:
		return unpackSubject(ctx, path)
	case strings.HasSuffix(path, ".gz"), strings.HasSuffix(path, ".tgz"):
		return nil, notBundle(path)
	}
	if dir := formationOf(path); dir != "" {
		return directory(dir), nil
	}
	return &subject{name: path, load: path, base: filepath.Dir(path)}, nil
}

// statFormation looks at what is to be a formation.
func statFormation(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &client.Error{Status: http.StatusNotFound, Name: "NotFound", Message: "there is no " + path}
	case err != nil:
		return nil, fmt.Errorf("open formation: %w", err)
	}
	return info, nil
}

// notBundle refuses a file that says or should be a bundle and is none.
func notBundle(path string) error {
	return fmt.Errorf("%s is no bundle: give the directory of a formation, or a gzipped tar file of it", path)
}

// directory is the formation in dir, which has a name even where you are in it.
func directory(dir string) *subject {
	s := &subject{name: dir, load: dir, base: dir}
	if last := filepath.Base(dir); last == "." || last == ".." {
		if abs, err := filepath.Abs(dir); err == nil {
			s.name = filepath.Base(abs)
		}
	}
	return s
}

// isGzip tells whether a file is a bundle, by its first bytes.
func isGzip(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("open formation: %w", err)
	}
	defer f.Close()
	head := make([]byte, 2)
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("read formation: %w", err)
	}
	return bytes.Equal(head, []byte{0x1f, 0x8b}), nil
}

func unpackSubject(ctx context.Context, path string) (_ *subject, err error) {
	s := &subject{name: path}
	if s.temp, err = os.MkdirTemp("", "formation-"); err != nil {
		return nil, fmt.Errorf("make room for the bundle: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	defer f.Close()
	s.load = filepath.Join(s.temp, "unpacked")
	if _, err := archive.Extract(ctx, f, s.load, archive.DefaultLimits()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// formationOf returns the directory of the formation that a file is a part of,
// "" when it is a manifest or a part of none.
func formationOf(file string) string {
	const deepest = 8 // knowledge and skills have directories of their own
	dir := filepath.Dir(file)
	for range deepest {
		part := filepath.Base(dir)
		up := filepath.Dir(dir)
		if abs, err := filepath.Abs(dir); err == nil && (part == "." || part == "..") {
			part, up = filepath.Base(abs), filepath.Join(dir, "..")
		}
		if slices.Contains(partDirs(), part) {
			if _, err := manifest.Find(up); err == nil {
				return up
			}
		}
		if up == dir {
			return ""
		}
		dir = up
	}
	return ""
}

// partDirs are the directories of a formation that hold its parts.
func partDirs() []string {
	return []string{"agents", "mcp", "mcps", "a2a", "skills", "sops", "triggers", "transformers", "groups"}
}
