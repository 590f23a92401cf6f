package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/agentherald/herald/internal/store"
)

// print tells what was found, in the order in which it was.
func (p *prober) print() error {
	r := &p.found
	fmt.Fprintf(p.out, "%s\n\n", nameOf(p.agent))
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	for _, s := range r.Steps {
		row(s.What, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", s.Source, s.Found, tookWords(s.TookMs))))
	}
	if e := r.Endpoint; e != nil {
		row("called at", fmt.Sprintf("%s over %s, as %s says", e.Address, e.Transport, e.From))
	}
	if r.Server != nil {
		row("server", cmp.Or(serverWords(asJSON(r.Server)), "it does not say what it is"))
		row("protocol", r.Protocol)
		tools := toolWords(store.ToolList(r.Tools))
		if r.ToolsCut {
			tools += "; more than is read"
		}
		row("tools", fmt.Sprintf("%s, listed in %s", tools, tookWords(r.ListedMs)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := p.printArguments(); err != nil {
		return err
	}
	if a := r.Answer; a != nil {
		fmt.Fprintf(p.out, "\nanswered in %s: %s\n", tookWords(a.TookMs), cmp.Or(printable(short(a.Text)), "nothing that this version can read"))
	}
	fmt.Fprintf(p.out, "\nverdict: %s\n", printable(r.Verdict))
	if r.NextStep != "" {
		fmt.Fprintf(p.out, "next: %s\n", printable(r.NextStep))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(p.out, "note: %s\n", printable(n))
	}
	if r.Kept {
		fmt.Fprintln(p.out, "what was learned is written down: `worker agent show` tells it")
	}
	return nil
}

// printArguments is a table of the sample beside what is sent of it.
func (p *prober) printArguments() error {
	r := &p.found
	if len(r.Arguments) == 0 {
		return nil
	}
	fmt.Fprintf(p.out, "\na sample %s, fitted to %s:\n", r.Kind, printable(r.Tool))
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ARGUMENT\tSAMPLE\tSENT")
	for _, a := range r.Arguments {
		sent := valueWords(a.Sent)
		switch {
		case !r.Fits:
			sent = "-"
		case a.Change == argumentDropped:
			sent = "left out"
		case a.Change == argumentKept:
			sent = "as it is"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", a.Name, valueWords(a.Sample), sent)
	}
	return w.Flush()
}

// valueWords is a value on one line of a table.
func valueWords(raw json.RawMessage) string {
	const width = 48
	if r := []rune(string(raw)); len(r) > width {
		return printable(string(r[:width])) + "…"
	}
	return printable(string(raw))
}
