package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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

// printTable prints rows below a heading, in columns.
func printTable(w io.Writer, heading []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{heading}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.Map(noBreak, printable(cell))
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return tw.Flush()
}

// noBreak keeps a cell on its line and in its column.
func noBreak(r rune) rune {
	if r == '\n' || r == '\t' {
		return ' '
	}
	return r
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
