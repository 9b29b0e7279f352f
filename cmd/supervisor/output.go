package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// json says whether results are printed for programs.
func (a *app) json() bool { return a.output == "json" }

// printJSON prints v, indented.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// result prints one line of a result.
func (a *app) result(format string, args ...any) error {
	_, err := fmt.Fprintln(a.out, printable(fmt.Sprintf(format, args...)))
	return err
}

// bytesText shows a size: 512 B, 1.5 KiB, 20 MiB.
func bytesText(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/step, 0
	for ; size >= step && unit < 3; unit++ {
		size /= step
	}
	return fmt.Sprintf("%.1f %ciB", size, "KMGT"[unit])
}

// count shows a number of things: 1 file, 2 files.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// orDash shows an absent value.
func orDash(s string) string {
	if s == "" || s == "0" {
		return "-"
	}
	return s
}

// age shows a duration by its two largest units: 3d4h, 2h5m, 4m10s, 7s.
func age(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	day, hour, minute, second := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case day > 0:
		return fmt.Sprintf("%dd%dh", day, hour)
	case hour > 0:
		return fmt.Sprintf("%dh%dm", hour, minute)
	case minute > 0:
		return fmt.Sprintf("%dm%ds", minute, second)
	}
	return fmt.Sprintf("%ds", second)
}
