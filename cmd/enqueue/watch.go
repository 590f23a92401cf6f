package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/progress"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/google/uuid"
)

// chainFlags are the options of both commands that follow a chain.
type chainFlags struct {
	Chain number        `arg:"" help:"The chain's id; RPC_URL_<id> names its nodes."`
	Poll  time.Duration `help:"Pause between questions at the head of the chain. Default: ${default}." default:"2s" placeholder:"DURATION"`
}

type watchCommand struct {
	chainFlags
	From *number `help:"First block of contracts that were never read. Without: the newest. The others continue where they stopped." placeholder:"BLOCK"`
}

type backfillCommand struct {
	chainFlags
	From number  `required:"" help:"First block." placeholder:"BLOCK"`
	To   *number `help:"Last block. Without: the newest when it starts." placeholder:"BLOCK"`
	Rate float64 `help:"New deliveries a second, so that the agents and the lines to them are not flooded with years at once. 0: as fast as the node and the database go. Default: ${default}." default:"100" placeholder:"N"`
}

// number is the id of a chain or the number of a block. The ledger stores them as signed integers of 64 bits.
type number uint64

// UnmarshalText accepts decimal digits, and hexadecimal ones after 0x. It refuses a zero before decimal digits, which
// kong would take for octal ones.
func (n *number) UnmarshalText(text []byte) error {
	s := string(text)
	parsed, err := strconv.ParseUint(s, 0, 63)
	switch {
	case len(s) > 1 && s[0] == '0' && !strings.EqualFold(s[:2], "0x"):
		return fmt.Errorf("%q begins with a zero: leave it out", s)
	case err != nil:
		return fmt.Errorf("%q is not a whole number up to %d", s, math.MaxInt64)
	}
	*n = number(parsed)
	return nil
}

// Run follows the chain. A signal ends it without an error.
func (c *watchCommand) Run(t *task) error {
	return c.readChain(t, watch.Config{From: (*uint64)(c.From)})
}

// Run reads the range of blocks.
func (c *backfillCommand) Run(t *task) error {
	switch {
	case c.To != nil && *c.To < c.From:
		return misuse{fmt.Errorf("--to %d is before --from %d", *c.To, c.From)}
	case c.Rate < 0 || math.IsNaN(c.Rate): // without a limit, NaN would flood the agents
		return misuse{fmt.Errorf("--rate %v is not a number from 0", c.Rate)}
	}
	return c.readChain(t,
		watch.Config{From: (*uint64)(&c.From), Ends: true, To: (*uint64)(c.To), Rate: c.Rate})
}

// readChain reads the blocks that wc selects.
func (c *chainFlags) readChain(t *task, wc watch.Config) error {
	if wc.Poll = c.Poll; c.Poll < 0 {
		return misuse{fmt.Errorf("--poll %s is below 0s", c.Poll)}
	}
	return t.openChain(uint64(c.Chain), wc, func(wc watch.Config) error {
		w, err := watch.New(wc)
		if err != nil {
			return misuse{err}
		}
		if err = w.Run(t.ctx); err == nil || !wc.Ends && errors.Is(err, context.Canceled) {
			return nil
		}
		return fmt.Errorf("stopped before the last block was read; run the same command to continue: %w", err)
	})
}

// openChain connects to a chain and the database, and completes the watcher's configuration. It then calls do, and
// prints a report.
func (t *task) openChain(id uint64, wc watch.Config, do func(watch.Config) error) error {
	known := t.cfg.Chains[id]
	if len(known.RPCURLs) == 0 {
		return misuse{fmt.Errorf("chain %d has no node: set RPC_URL_%[1]d", id)}
	}
	log := logging.New(t.stderr, t.cfg.LogLevel, t.cfg.LogFormat)
	queue.LogDriver(log)
	nodes, err := node.New(node.Config{ChainID: id, URLs: known.RPCURLs, Logger: log})
	if err != nil {
		return misuse{err}
	}
	defer nodes.Close()
	conn := &connection{}
	defer conn.close()
	if err := conn.open(t.ctx, t.cfg, t.wait, log); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	go conn.policies.Run(ctx)
	report := &chainReport{out: newPrinter(t.stdout, t.json), bar: progress.New(t.stderr, 0), tally: tally{}}
	defer report.printEnd(t.stderr)
	wc.Chain, wc.Deployment = eventlog.New(nodes, t.cfg.TrustsNodes(id)), known.Registries.Default()
	wc.Ledger, wc.Limits = conn.store, backend.JobLimits(t.cfg)
	wc.Filter, wc.Report, wc.Logger = conn.policies.SkipJob, report.add, log
	if conn.dispatcher != nil {
		wc.Dispatcher = conn.dispatcher
	}
	return do(wc)
}

// chainReport prints one line for each event, and the current block if stderr is a terminal.
type chainReport struct {
	out   *printer
	bar   *progress.Bar
	tally tally
	// Deliveries whose feedback a reorg removed: cancelled before the agent was called, or retracted afterwards.
	cancelled, retracted int
	last                 watch.Report
}

func (r *chainReport) add(report watch.Report) {
	r.last = report
	for i, a := range report.Answers {
		answer := intake.Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field, Status: a.Status,
			Problem: intake.DescribeConflict(a, report.Events[i].Job)}
		if a.Verdict == ledger.Refreshed { // an agent update has no key: the line names the agent instead
			answer.Key = fmt.Sprintf("%d:%s", report.Events[i].Job.ChainID, report.Events[i].Job.AgentID)
		}
		if err := report.Events[i].Err; err != nil {
			answer.Verdict, answer.Path, answer.Problem = intake.Refused, a.Key, err.Error()
		}
		r.tally[answer.Verdict]++
		r.out.addEvent(report.To, answer)
	}
	for _, v := range report.Vanished {
		if v.Cancelled {
			r.cancelled++
		}
		if v.Retraction != uuid.Nil {
			r.retracted++
		}
		r.out.addVanished(report.To, v)
	}
	if r.out.buf.Len() > 0 {
		r.bar.Clear()
		_ = r.out.flush() // the commit stands even if the output cannot be written
	}
	r.bar.Draw(-1, func(seconds float64) string {
		events := r.tally.countAll()
		return fmt.Sprintf("block %d, %d behind the head, %s, %.0f/s", report.To,
			report.Head-min(report.Head, report.To), text.Count(events, "event", "events"), float64(events)/seconds)
	})
}

func (r *chainReport) printEnd(stderr io.Writer) {
	r.bar.Clear()
	if r.last.To > 0 {
		fmt.Fprintf(stderr, "enqueue: read to block %d\n", r.last.To)
	}
	r.tally.printTally(stderr)
	if r.cancelled+r.retracted > 0 {
		fmt.Fprintf(stderr, "enqueue: reorgs took feedback off the chain: %s cancelled, %d retracted\n",
			text.Count(r.cancelled, "delivery", "deliveries"), r.retracted)
	}
}

// addVanished prints a line for a delivery whose event a reorg removed from the chain.
func (p *printer) addVanished(block uint64, v ledger.Vanished) {
	verdict := ledger.Verdict("vanished") // it had ended, or its kind of event has no retraction
	switch {
	case v.Retraction != uuid.Nil:
		verdict = "retracted"
	case v.Cancelled:
		verdict = "cancelled"
	}
	if p.json {
		p.addJSON(answerLine{Verdict: verdict, UpTo: block, ID: v.ID, Key: v.Key, Retraction: v.Retraction})
		return
	}
	fmt.Fprintf(&p.buf, "%s %s %s: no longer on the chain, read to block %d\n", verdict, v.ID, oneLine(v.Key), block)
}

// addEvent prints the answer for an event. Instead of a line of the input it names a block.
func (p *printer) addEvent(block uint64, a intake.Answer) {
	switch {
	case p.json:
		line := answerLine{Verdict: a.Verdict, UpTo: block, ID: a.ID, Key: a.Key, Field: a.Path, Problem: a.Problem}
		if a.Verdict == ledger.Refreshed {
			line.Key, line.Agent = "", a.Key
		}
		p.addJSON(line)
	case a.Verdict == intake.Refused:
		fmt.Fprintf(&p.buf, "refused %s block %d: %s\n", oneLine(a.Key), block, oneLine(a.Problem))
	case a.Verdict == ledger.Refreshed:
		fmt.Fprintf(&p.buf, "refreshed agent %s: its registration changed, read to block %d\n", oneLine(a.Key), block)
	default:
		p.addAnswer(intake.Line{}, a)
	}
}

type txCommand struct {
	Chain number `arg:"" help:"The chain's id; RPC_URL_<id> names its nodes."`
	Hash  string `arg:"" help:"The transaction's hash, 0x and 64 digits."`
}

// Run enqueues the events of one transaction. Exit codes: 0 done (known counts as done); 1 failed, or the chain has no
// such transaction, or no registry emitted an event in it; 2 misuse; 3 an event was refused or is in conflict.
func (c *txCommand) Run(t *task) error {
	hash, err := hexutil.Decode(c.Hash)
	if err != nil || len(hash) != common.HashLength {
		return misuse{fmt.Errorf("%q is no transaction's hash: 0x and 64 hexadecimal digits", c.Hash)}
	}
	return t.openChain(uint64(c.Chain), watch.Config{}, func(wc watch.Config) error {
		read, err := watch.AcceptTransaction(t.ctx, wc, common.BytesToHash(hash))
		wc.Report(read)
		switch {
		case err != nil:
			return err
		case len(read.Answers) == 0:
			return fmt.Errorf("no registry of chain %d emitted an event in this transaction: "+
				"`worker config` shows the registries", c.Chain)
		case slices.ContainsFunc(read.Events, func(e eventlog.Entry) bool { return e.Err != nil }) ||
			slices.ContainsFunc(read.Answers, func(a ledger.Acceptance) bool { return a.Verdict == ledger.Conflict }):
			return errRefused
		}
		return nil
	})
}
