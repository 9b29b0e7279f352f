package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/redact"
	"github.com/agentformation/service/pkg/supervisor/auth"
)

// The values of logging.format and logging.output.
const (
	logJSON    = "json"
	logConsole = "console"
	logStdout  = "stdout"
	logStderr  = "stderr"
)

// Terminal is one of the program's own outputs.
type Terminal struct {
	io.Writer
	Person bool // somebody reads it at a terminal
}

// OpenLog returns the log that logging.level, format and output ask for. The
// caller closes it at its end, which matters for a file only. The file is
// appended to, so that it can be rotated. No secret of the settings is written,
// nor what has the shape of one.
func (c *Config) OpenLog(stdout, stderr Terminal) (zerolog.Logger, io.Closer, error) {
	level, err := zerolog.ParseLevel(c.Logging.Level)
	if err != nil {
		return zerolog.Nop(), nil, fmt.Errorf("logging.level: %w", err)
	}
	var to Terminal
	closer := io.Closer(io.NopCloser(nil))
	switch c.Logging.Output {
	case logStdout:
		to = stdout
	case logStderr:
		to = stderr
	default:
		f, err := openLogFile(c.path(c.Logging.Output))
		if err != nil {
			return zerolog.Nop(), nil, err
		}
		to.Writer, closer = f, f
	}
	if c.Logging.Format == logConsole || c.Logging.Format == "" && to.Person {
		to.Writer = zerolog.ConsoleWriter{Out: to.Writer, NoColor: !to.Person}
	}
	c.redact = redact.New()
	c.redact.Add(string(c.Metrics.Token), string(c.Notify.Secret))
	c.hideKeys(c.Auth.Keys)
	return zerolog.New(c.redact.Writer(to.Writer)).Level(level).With().Timestamp().Logger(), closer, nil
}

// hideKeys keeps the secrets of management keys out of the log.
func (c *Config) hideKeys(keys []auth.Key) {
	if c.redact == nil {
		return // the log is the caller's
	}
	for _, k := range keys {
		c.redact.Add(string(k.Secret))
	}
}

// logFiles are the supervisor's own log files.
func (c Config) logFiles() []string {
	files := []string{c.path(c.Logging.AuditLog)}
	if o := c.Logging.Output; o != logStdout && o != logStderr {
		files = append(files, c.path(o))
	}
	return files
}

// openLogFile opens a log for appending; a group of operators may read it, as
// the formations' logs.
func openLogFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640) //nolint:gosec // see above
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// path makes a setting that is relative to the home directory absolute.
func (c Config) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.Home, p)
}
