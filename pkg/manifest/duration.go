package manifest

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// maxDuration bounds every duration of a configuration file, so that sums of
// them never overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

var errDuration = errors.New("a duration is like 500ms, 90s, 15m, 2h or a number of seconds")

// ParseDuration reads the durations of configuration files: a number with the
// unit ms, s, m or h, or a bare number of seconds. Combinations such as 1h30m,
// signs and values over ten years are refused.
func ParseDuration(s string) (time.Duration, error) { return parseSpan(s, time.Second) }

// parseSpan reads a duration whose bare number counts in bare.
func parseSpan(s string, bare time.Duration) (time.Duration, error) {
	digits := strings.TrimRight(s, "msh")
	unit, ok := map[string]time.Duration{
		"": bare, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
	}[s[len(digits):]]
	if !ok || digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, errDuration
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n*float64(unit) > float64(maxDuration) {
		return 0, errDuration
	}
	return time.Duration(n * float64(unit)), nil
}

// day is the unit of the keys that end in _days.
const day = 24 * time.Hour

// brief writes a duration as a file would: 5m, not 5m0s.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// unitName names what a bare number counts.
func unitName(unit time.Duration) string {
	name, ok := map[time.Duration]string{time.Minute: "minutes", time.Hour: "hours", day: "days"}[unit]
	if !ok {
		return "seconds"
	}
	return name
}
