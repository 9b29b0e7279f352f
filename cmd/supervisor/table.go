package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// colour is how a piece of text is shown at a terminal.
type colour string

// The colours, as the terminal is told.
const (
	plain  colour = ""
	bold   colour = "1"
	dim    colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

// labels are the colours that tell the sources of merged lines apart.
var labels = [...]colour{"36", "35", "34", "33", "32", "96", "95", "94"}

// paint colours text of a result, paintErr text beside it, for a terminal that
// wants it.
func (a *app) paint(c colour, text string) string { return a.tint(a.outTTY, c, text) }

func (a *app) paintErr(c colour, text string) string { return a.tint(a.errTTY, c, text) }

func (a *app) tint(terminal bool, c colour, text string) string {
	if !terminal || a.noColour || c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// cell is one field of a table.
type cell struct {
	text   string
	colour colour
}

// gap is what stands between two columns.
const gap = "  "

// table is rows in columns below a heading.
type table struct {
	heading []string
	rows    [][]cell
}

// add appends a row of plain cells.
func (t *table) add(texts ...string) {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i] = cell{text: text}
	}
	t.rows = append(t.rows, row)
}

// printTable prints t. A cell keeps its line and its column whatever is in it.
func (a *app) printTable(w io.Writer, t table) error {
	head := make([]cell, len(t.heading))
	for i, text := range t.heading {
		head[i] = cell{text, bold}
	}
	rows := append([][]cell{head}, t.rows...)
	width := make([]int, len(t.heading))
	for _, row := range rows {
		for i := range row {
			row[i].text = strings.Map(noBreak, printable(row[i].text))
			width[i] = max(width[i], utf8.RuneCountInString(row[i].text))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		pad := ""
		for i, c := range row {
			if c.text != "" { // blanks are owed until something follows: no line ends with them
				out.WriteString(pad + a.paint(c.colour, c.text))
				pad = ""
			}
			pad += strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text)) + gap
		}
		out.WriteString("\n")
	}
	_, err := fmt.Fprint(w, out.String())
	return err
}

// noBreak keeps a cell on its line and in its column.
func noBreak(r rune) rune {
	if r == '\n' || r == '\t' {
		return ' '
	}
	return r
}
