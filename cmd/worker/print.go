package main

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator/report"
)

// table prints rows in columns. It makes every cell printable, and prints an empty one as a dash.
type table struct{ *tabwriter.Writer }

func (a *command) newTable(head ...any) table {
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

// printFacts prints one name and value per line.
func (a *command) printFacts(facts report.Facts) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, f := range facts {
		fmt.Fprintf(w, "%s\t%s\n", f.Name, text.Printable(f.Value))
	}
	w.Flush()
}

// pageFlags select a page of a list.
type pageFlags struct {
	Cursor int64 `help:"Continue before this cursor: the last line of the previous page shows it (next in JSON)."`
	Limit  int   `help:"Rows." default:"50"`
}

// endPage ends a table. If there is another page, it prints the option that lists it.
func (a *command) endPage(t table, next string) {
	t.Flush()
	if next != "" {
		fmt.Fprintf(a.out, "more: --cursor %s\n", next)
	}
}

// output is stdout. It keeps the first error, with which the command then ends, and writes nothing after it.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(p []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.Writer.Write(p)
	}
	return n, o.err
}

// jsonFlag selects the format of the output.
type jsonFlag struct {
	JSON bool `name:"json" help:"As JSON."`
}

// printAnswer writes the result v of an action as JSON with --json, else it calls print. If the action failed with err,
// it returns err instead.
func (f jsonFlag) printAnswer(a *command, v any, err error, print func()) error {
	switch {
	case err != nil:
	case f.JSON:
		if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
			v = []any{} // null is no list
		}
		var encoded string
		encoded, err = report.JSON(v)
		fmt.Fprint(a.out, encoded)
	default:
		print()
	}
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return text.Printable(s)
}
