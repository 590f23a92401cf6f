package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/text"
)

// table writes rows in columns. Every cell is made printable; an empty one is a dash.
type table struct{ *tabwriter.Writer }

func (a *app) newTable(head ...any) table {
	t := table{tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)}
	t.addRow(head...)
	return t
}

func (t table) addRow(cells ...any) {
	line := make([]string, len(cells))
	for i, c := range cells {
		line[i] = orDash(fmt.Sprint(c))
	}
	fmt.Fprintln(t, strings.Join(line, "\t"))
}

// fields writes names and values, one a line; an empty value is left out.
type fields struct{ *tabwriter.Writer }

func (a *app) newFields() fields { return fields{tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)} }

func (f fields) addRow(name, value string) {
	if value != "" {
		fmt.Fprintf(f, "%s\t%s\n", name, text.Printable(value))
	}
}

// pageFlags choose a page of a list.
type pageFlags struct {
	Cursor int64 `help:"Continue before this cursor, as the end of the previous page tells (next in JSON)."`
	Limit  int   `help:"Rows." default:"50"`
}

// endPage ends a table, and says how the next page is had, if there is one.
func (a *app) endPage(t table, next string) error {
	err := t.Flush()
	if err == nil && next != "" {
		_, err = fmt.Fprintf(a.out, "more: --cursor %s\n", next)
	}
	return err
}

// jsonFlag chooses the form of an answer.
type jsonFlag struct {
	JSON bool `name:"json" help:"As JSON."`
}

// printAnswer writes v for programs with --json, else as print does. It is written although the command fails with err,
// which comes first.
func (f jsonFlag) printAnswer(a *app, v any, print func() error) error {
	if f.JSON {
		return writeJSON(a, v)
	}
	return print()
}

// writeJSON writes v for programs. Strangers' control and direction characters are escaped, so that it is safe on a
// terminal too.
func writeJSON(a *app, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r != '\n' && text.DrivesTerminal(r) { // in JSON only strings can hold these, and there an escape means the same
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	_, err := io.WriteString(a.out, out.String())
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return text.Printable(s)
}

// shortenJSON shortens JSON for one line of a terminal; --json has all of it.
func shortenJSON(raw json.RawMessage) string {
	return text.Cut(string(raw), 300, "… (--json shows all)")
}

// formatTime is a moment as every command writes it, "-" when there is none.
func formatTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// formatMillis is how long something took.
func formatMillis(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }
