package supervisor

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/limits"
)

// CheckConfig reads a settings file as LoadConfig does, and looks for what only
// a start would find: certificates that cannot be used. It returns the warnings,
// and all faults as one error with file, line and column.
func CheckConfig(path string) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("resolve settings file: %w", err)
	}
	text, err := os.ReadFile(abs)
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	cfg, err := parseConfig(filepath.Dir(abs), path, text, nil)
	if err != nil {
		return nil, err
	}
	return cfg.Warnings, cfg.checkFiles()
}

// checkFiles looks at the files that the settings name.
func (c Config) checkFiles() error {
	if !c.Server.TLS.On() {
		return nil
	}
	_, err := loadPair(c.path(c.Server.TLS.Cert), c.path(c.Server.TLS.Key))
	return err
}

// Show writes the settings in effect as YAML, each with where it comes from: a
// line of config.yaml, a variable of the environment, or the default. Secrets
// are masked, and of a webhook the host is shown only. Keys without effect are
// left out.
func (c Config) Show(w io.Writer) error {
	s := &shower{origin: c.origin}
	if c.Listen != "" {
		s.text.WriteString("# the management API listens on " + c.Listen + " (--listen)\n")
	}
	s.block(reflect.ValueOf(c), "", 0)
	_, err := io.WriteString(w, s.text.String())
	return err
}

type shower struct {
	origin map[string]string
	text   strings.Builder
}

// block writes the keys of a struct.
func (s *shower) block(v reflect.Value, path string, depth int) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := f.Tag.Get("conf")
		if key == "" || key == "-" || f.Tag.Get("alias") != "" || f.Type == reflect.TypeFor[unused]() {
			continue
		}
		s.value(key, v.Field(i), strings.TrimPrefix(path+"."+key, "."), depth)
	}
}

// value writes one key.
func (s *shower) value(key string, v reflect.Value, full string, depth int) {
	indent := strings.Repeat("  ", depth)
	switch {
	case strings.HasPrefix(full, "formations.limits.") && v.IsZero(), strings.HasPrefix(full, "formations.budgets.") && v.IsZero():
		return // not limited here
	case v.Kind() == reflect.Map && v.Len() > 0:
		fmt.Fprintf(&s.text, "%s%s:\n", indent, key)
		var names []string
		for _, name := range v.MapKeys() {
			names = append(names, name.String())
		}
		slices.Sort(names)
		for _, name := range names {
			s.value(name, v.MapIndex(reflect.ValueOf(name)), full+"."+name, depth+1)
		}
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[netip.Prefix]():
		fmt.Fprintf(&s.text, "%s%s:\n", indent, key)
		s.block(v, full, depth+1)
	default:
		text := scalar(v, full)
		fmt.Fprintf(&s.text, "%s%s: %s  # %s\n", indent, key, text, s.from(full))
	}
}

// from tells where a key got its value: a key of a list from the whole list.
func (s *shower) from(full string) string {
	if at, ok := s.origin[full]; ok {
		return at
	}
	return "default"
}

// scalar writes a value as LoadConfig reads it, on one line.
func scalar(v reflect.Value, full string) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		if x == 0 && strings.HasSuffix(full, "orphan_timeout") {
			return "never"
		}
		return duration(x)
	case size:
		return bytesText(int64(x))
	case cores:
		return strconv.FormatFloat(float64(x), 'g', -1, 64)
	case share:
		return strconv.FormatFloat(float64(x), 'g', -1, 64)
	case *money:
		return strconv.FormatFloat(float64(*x), 'f', -1, 64)
	case address:
		return plain(x.String())
	case auth.Secret:
		if x == "" {
			return `""`
		}
		return plain(x.String())
	case netip.Prefix:
		return x.String()
	case *limits.UserRange:
		if x == nil {
			return "null"
		}
		return x.String()
	case auth.Key:
		end := ""
		if !x.Until.IsZero() {
			end = ", valid_until: " + strconv.Quote(x.Until.Format(time.RFC3339))
		}
		return fmt.Sprintf("{id: %s, secret: %s%s}", plain(x.ID), plain(x.Secret.String()), end)
	}
	switch v.Kind() {
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = scalar(v.Index(i), full)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		return "{}"
	case reflect.String:
		return plain(v.String())
	default:
		return fmt.Sprint(v.Interface())
	}
}

// duration writes whole seconds as such: 90s, not 1m30s.
func duration(d time.Duration) string {
	if d%time.Second == 0 {
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64) + "ms"
}

// bytesText writes a size with the largest unit that leaves it whole.
func bytesText(n int64) string {
	if n == 0 {
		return "null"
	}
	for i, unit := range []int64{1 << 30, 1 << 20, 1 << 10} {
		if n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + []string{"GiB", "MiB", "KiB"}[i]
		}
	}
	return strconv.FormatInt(n, 10)
}

// plain writes a text, in quotes where YAML might read it as something else.
func plain(text string) string {
	letters := strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-./0123456789")
	_, notFloat := strconv.ParseFloat(text, 64)
	_, notInt := strconv.ParseInt(text, 0, 64)
	switch strings.ToLower(text) {
	case "true", "false", "null", "yes", "no", "on", "off", "never":
		return strconv.Quote(text)
	}
	if text == "" || letters != "" || notFloat == nil || notInt == nil || text[0] == '-' {
		return strconv.Quote(text)
	}
	return text
}
