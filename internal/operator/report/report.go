// Package report describes results of package operator: in words, as facts, each a name and a value, as cells of a
// table, and as JSON. Commands print them. A value in words may contain text from strangers, which the caller makes
// printable.
package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/operator/tokens"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// JSON encodes v in lines. It escapes control and direction characters, which strangers may have sent, so that the text
// is safe on a terminal.
func JSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	var out strings.Builder
	for _, r := range b.String() {
		// in JSON only strings can contain them, and escapes are equivalent there
		if r != '\n' && text.DrivesTerminal(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String(), err
}

// Fact is a named value.
type Fact struct{ Name, Value string }

// Facts are the facts about one thing, in the order in which they are shown.
type Facts []Fact

// addFact adds a fact, unless its value is empty.
func (f *Facts) addFact(name, value string) {
	if value != "" {
		*f = append(*f, Fact{name, value})
	}
}

// addTime adds a fact with a time, unless it is nil.
func (f *Facts) addTime(name string, t *time.Time) {
	if t != nil {
		f.addFact(name, Time(t))
	}
}

// Time formats a time as all commands print it; nil is "-".
func Time(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// Millis formats a duration in milliseconds.
func Millis(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }

// shortenJSON shortens JSON to one line of a terminal. --json prints all of it.
func shortenJSON(raw json.RawMessage) string {
	return text.Cut(string(raw), 300, "… (--json shows all)")
}

// Delivery describes a delivery: its identity, its state, its retraction or nil, and each attempt.
func Delivery(d operator.Delivery, retraction *ledger.Delivery) (f Facts) {
	f.addFact("delivery", d.ID.String())
	f.addFact("key", d.Key)
	status := strings.TrimSpace(string(d.Status) + " " + string(d.Reason))
	if retraction != nil {
		status += fmt.Sprintf(", retracted after a reorg: delivery %s", retraction.ID)
	}
	f.addFact("status", status)
	f.addFact("client", d.Client)
	f.addFact("value", d.Value)
	f.addFact("tags", strings.TrimSpace(d.Tag1+" "+d.Tag2))
	f.addFact("error", d.Error)
	f.addFact("next step", d.NextStep)
	f.addFact("tool", d.ToolName)
	f.addFact("endpoint", d.Endpoint)
	f.addFact("file", strings.TrimSpace(d.FileVerification+" "+d.FileSource))
	if len(d.FileDisagrees) > 0 {
		f.addFact("file disagrees", strings.Join(d.FileDisagrees, ", ")+": the event wins")
	}
	if len(d.Corrected) > 0 {
		f.addFact("corrected", strings.Join(d.Corrected, ", ")+": the chain's values were used")
	}
	if !d.Verified {
		f.addFact("event", "not verified when the job was accepted: the job is the content")
	}
	f.addFact("accepted", Time(&d.CreatedAt))
	f.addFact("attempts", describeAttempts(d.Delivery))
	f.addTime("next attempt", d.NextAttemptAt)
	f.addTime("finished", d.FinishedAt)
	f.addFact("trace", d.TraceID)
	f.addFact("job", string(d.Job))
	if r := d.Received(); r != nil {
		f.addFact("received", fmt.Sprintf("%s, with values masked that may be secret: %s",
			text.Count(r.Bytes, "byte", "bytes"), r.Text))
	} else {
		f.addFact("result", string(d.Result))
	}
	for _, t := range d.History {
		f.addFact(fmt.Sprintf("attempt %d", t.Number), describeAttempt(t))
		f.addFact("  sent", shortenJSON(t.Arguments))
		f.addFact("  answered", shortenJSON(t.Response))
	}
	return f
}

// describeAttempts returns how many attempts count, and since when a delivery waits or is held. If the agent's tool was
// not called, a hold or a free wait takes back its attempt, so the list of attempts does not show it. A delivery that
// was held when it was accepted had no attempt.
func describeAttempts(d ledger.Delivery) string {
	counted := fmt.Sprintf("%d that count", d.Attempts)
	if d.Status != outcome.Held && d.Status != outcome.Waiting {
		return counted
	}
	return fmt.Sprintf("%s; %s for %s since %s", counted, d.Status, d.Reason, Time(&d.UpdatedAt))
}

func describeAttempt(t ledger.Attempt) string {
	s := fmt.Sprintf("%s  %s at %s", Time(&t.StartedAt), cmp.Or(t.Outcome, "not finished"), t.Stage)
	if t.DurationMs != nil {
		s += fmt.Sprintf(" after %d ms", *t.DurationMs)
	}
	if t.Reason != "" {
		s += "  " + string(t.Reason) + ": " + t.Error
	}
	return s
}

// Chain describes how far a chain is read, and its nodes.
func Chain(c operator.ChainState) (f Facts) {
	f.addFact("chain", fmt.Sprint(c.ChainID))
	f.addFact("nodes", Nodes(c))
	for _, n := range c.Nodes {
		if n.Problem != "" {
			f.addFact("", fmt.Sprintf("node %d: %s", n.Number, n.Problem))
		}
	}
	f.addFact("problem", c.Problem)
	if len(c.Cursors) == 0 {
		f.addFact("blocks", "never read")
	}
	for _, r := range c.Cursors {
		f.addFact("contracts", strings.Join(r.Contracts, " "))
		f.addFact("blocks", Blocks(r))
		f.addFact("began at", fmt.Sprint(r.Start))
		f.addFact("next", fmt.Sprint(r.Next))
		f.addFact("head", Block(r.Head))
		f.addFact("lag", Lag(r))
		f.addFact("finalized", Block(r.Finalized))
		f.addFact("settled", Block(r.Settled))
		f.addFact("reorgs", fmt.Sprint(r.Reorgs))
		f.addFact("moved", Time(r.MovedAt))
		if r.Checks != nil {
			f.addFact("checked", describeChecks(*r.Checks))
			if r.Checks.Omission != nil {
				f.addFact("omission", describeOmission(*r.Checks))
			}
		}
		if r.StalledSince != nil {
			f.addFact("stalled", fmt.Sprintf("since %s: %s", Time(r.StalledSince), r.StalledWhy))
		}
	}
	return f
}

// Block formats the number of a block that may be unknown.
func Block(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// Blocks names the blocks that a cursor moves over.
func Blocks(f operator.CursorState) string {
	switch {
	case f.Backfill != "":
		return "backfill " + f.Backfill
	case f.Former:
		return "stopped: not a registry of the settings"
	}
	return "head"
}

// Lag returns how far a cursor is behind the node's newest block.
func Lag(f operator.CursorState) string {
	switch {
	case f.LagBlocks == nil:
		return "unknown"
	case *f.LagBlocks == 0:
		return "none"
	case f.LagTime == nil: // from the cursor: no node answered
		return text.Count(*f.LagBlocks, "block", "blocks")
	}
	behind := time.Duration(*f.LagTime * float64(time.Second))
	return text.Count(*f.LagBlocks, "block, ", "blocks, ") + behind.Round(time.Second).String()
}

// describeChecks says up to which block all logs are known to be complete.
func describeChecks(c follower.Checks) string {
	return fmt.Sprintf("%.0f %% of the newest blocks; all up to %d, %d after it are not",
		100*c.Share, c.Complete, c.Unchecked)
}

// describeOmission describes a node's omission, and the blocks that are still being read again.
func describeOmission(c follower.Checks) string {
	o := *c.Omission
	described := fmt.Sprintf("node %d left out %s of block %d, found %s",
		o.Node, text.Count(o.Logs, "log", "logs"), o.Block, Time(&o.At))
	if c.Recheck != nil {
		described += fmt.Sprintf("; blocks %d to %d are still read again", c.Recheck[0], c.Recheck[1])
	}
	return described
}

// Nodes counts the nodes that answer.
func Nodes(c operator.ChainState) string {
	answer := 0
	for _, n := range c.Nodes {
		if n.Problem == "" {
			answer++
		}
	}
	if len(c.Nodes) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d answer", answer, len(c.Nodes))
}

// Probe describes the steps of a probe up to the list of the agent's tools.
func Probe(r inspect.Probe) (f Facts) {
	for _, s := range r.Steps {
		f.addFact(s.What, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", s.Source, s.Found, Millis(s.TookMs))))
	}
	if e := r.Endpoint; e != nil {
		f.addFact("called at", fmt.Sprintf("%s over %s, as %s says", e.Address, e.Transport, e.From))
	}
	if r.Server != nil {
		f.addFact("server", cmp.Or(strings.TrimSpace(r.Server.Name+" "+r.Server.Version), "it does not name itself"))
		f.addFact("protocol", r.Protocol)
		tools := Tools(ledger.ToolList(r.Tools))
		if r.ToolsCut {
			tools += "; more than is read"
		}
		f.addFact("tools", fmt.Sprintf("%s, listed in %s", tools, Millis(r.ListedMs)))
	}
	return f
}

// Document describes the document at a URI.
func Document(d inspect.Document) (f Facts) {
	f.addFact("uri", d.URI)
	f.addFact("source", strings.TrimSpace(d.Source+" "+describeAnchor(d.Source, d.DNSLink)))
	f.addFact("cid", d.CID)
	f.addFact("from", d.From)
	f.addFact("media type", d.MediaType)
	if d.Bytes != nil {
		f.addFact("size", fmt.Sprintf("%d bytes in %s", *d.Bytes, Millis(d.TookMs)))
	}
	f.addFact("keccak256", d.Keccak256)
	f.addFact("hash", describeHash(erc8004.Verdict(d.Hash)))
	f.addFact("name", d.Name)
	for i, e := range d.MCP {
		address := e.Address
		if e.Version != "" {
			address += " (" + e.Version + ")"
		}
		f.addFact(fmt.Sprintf("mcp %d", i+1), fmt.Sprintf("%s %s %s: %s", e.From, e.Transport, address, e.Verdict))
	}
	return f
}

// describeAnchor says how the bytes of a document were verified.
func describeAnchor(source string, dnsLink bool) string {
	switch {
	case source == ipfs.SourceCID:
		return "(verified against the CID)"
	case source == ipfs.SourceIPNS && dnsLink:
		return "(the name was looked up in DNS, DNSLink: not verified)"
	case source == ipfs.SourceIPNS:
		return "(verified against the name's signed record)"
	case source == inspect.SourceFile:
		return "(of this machine)"
	case source == ipfs.SourceData:
		return "(in the URI itself)"
	case source == "":
		return ""
	}
	return "(as its server has it now: not verified)"
}

// describeHash explains the result of comparing a document with its on-chain hash.
func describeHash(v erc8004.Verdict) string {
	switch v {
	case "":
		return ""
	case erc8004.Raw:
		return "raw: keccak256 of exactly these bytes"
	case erc8004.SHA256:
		return "sha256: SHA-256 of exactly these bytes"
	case erc8004.NotGiven:
		return "not_given: a zero hash says nothing"
	case erc8004.Mismatch:
		return "mismatch: not of these bytes, nor of any known form of them"
	}
	return string(v) + ": keccak256 of another form of the same document"
}

// Move describes a replay or a cancellation, or its dry run with at most rate deliveries a second (0: no limit).
func Move(r *operator.MoveReport, rate int) string {
	switch {
	case r.DryRun:
		return describeDryRun(r, rate)
	case r.Matched == 0:
		return "no delivery matches\n"
	}
	return fmt.Sprintf("%d of %d %s (audit %d)\n", r.Moved, r.Matched, r.Done, r.Audit)
}

func describeDryRun(r *operator.MoveReport, rate int) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(w, "%d\t%s\t\n", r.ByStatus[status], status)
	}
	w.Flush()
	for _, status := range slices.Sorted(maps.Keys(r.Untouched)) {
		fmt.Fprintf(&out, "not moved: %d %s (%s)\n", r.Untouched[status], status, r.Why[status])
	}
	if r.Matched == 0 {
		return out.String() + "no delivery matches that could be moved\n"
	}
	takesTime := ""
	if rate > 0 {
		lasts := (time.Duration(r.Matched) * time.Second / time.Duration(rate)).Round(time.Second)
		takesTime = fmt.Sprintf(", %d a second, in about %s", rate, lasts)
	}
	return out.String() + fmt.Sprintf("%d would be %s%s. Nothing was changed: the same command with --yes does it.\n",
		r.Matched, r.Done, takesTime)
}

// Import describes the result of an import of tokens. Without yes, nothing was stored.
func Import(i *tokens.Import, yes bool) string {
	switch {
	case i.Good == 0:
		return "there is nothing to store"
	case !yes:
		return fmt.Sprintf("%s would be stored for %s. Look whether each may have its token. "+
			"Nothing was changed: the same command with --yes stores %s.", text.Count(i.Good, "token", "tokens"),
			text.Count(i.Origins, "origin", "origins"), text.Plural(i.Good, "it", "them"))
	}
	return fmt.Sprintf("%d of %s %s stored for %s; %s released (audit %d)", i.Stored,
		text.Count(i.Good, "token", "tokens"), text.Plural(i.Stored, "is", "are"),
		text.Count(i.Origins, "origin", "origins"),
		text.Count(i.Released, "held delivery was", "held deliveries were"), i.Audit)
}
