package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	"golang.org/x/term"
)

// chainFlags are the options of both commands that follow a chain.
type chainFlags struct {
	Chain uint64        `arg:"" help:"The chain's id; RPC_URL_<id> names its nodes."`
	Poll  time.Duration `help:"Pause between questions at the head of the chain." default:"2s" placeholder:"DURATION"`
}

type watchCommand struct {
	chainFlags
	From *uint64 `help:"First block of contracts that were never read. Without: the newest. The others continue where they stopped." placeholder:"BLOCK"`
}

type backfillCommand struct {
	chainFlags
	From uint64  `required:"" help:"First block." placeholder:"BLOCK"`
	To   *uint64 `help:"Last block. Without: the newest when it starts." placeholder:"BLOCK"`
	Rate float64 `help:"New deliveries a second, so that the agents and the lines to them are not flooded with years at once. 0: as fast as the node and the database go." default:"100" placeholder:"N"`
}

func (c *watchCommand) run(ctx context.Context, p process, cfg *config.Config, asJSON bool, wait time.Duration) int {
	return c.readChain(ctx, p, cfg, asJSON, wait, watch.Config{From: c.From})
}

func (c *backfillCommand) run(ctx context.Context, p process, cfg *config.Config, asJSON bool, wait time.Duration) int {
	return c.readChain(ctx, p, cfg, asJSON, wait, watch.Config{From: &c.From, Ends: true, To: c.To, Rate: c.Rate})
}

// readChain reads the blocks that wc selects. Exit codes: 0 all blocks are read, or a signal ended a watch; 1 failed; 2
// misuse.
func (c *chainFlags) readChain(ctx context.Context, p process, cfg *config.Config, asJSON bool, wait time.Duration,
	wc watch.Config) int {
	wc.Poll = c.Poll
	return onChain(ctx, p, cfg, asJSON, wait, c.Chain, wc, func(wc watch.Config, conn *connection) (int, error) {
		w, err := watch.New(wc)
		if err != nil {
			return exitMisuse, err
		}
		if err = w.Run(ctx); err == nil || !wc.Ends && errors.Is(err, context.Canceled) {
			return exitDone, nil
		}
		return exitFailed,
			fmt.Errorf("stopped before the last block was read; run the same command to continue: %w", err)
	})
}

// onChain connects to a chain and the database, and completes the watcher's configuration. It then calls do, prints a
// report, and returns the exit code.
func onChain(ctx context.Context, p process, cfg *config.Config, asJSON bool, wait time.Duration, chainID uint64,
	wc watch.Config, do func(watch.Config, *connection) (int, error)) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(p.stderr, "enqueue:", err)
		return code
	}
	known := cfg.Chains[chainID]
	if len(known.RPCURLs) == 0 {
		return fail(exitMisuse, fmt.Errorf("chain %d has no node: set RPC_URL_%d", chainID, chainID))
	}
	log := logging.New(p.stderr, cfg.LogLevel, cfg.LogFormat)
	queue.LogDriver(log)
	nodes, err := node.New(node.Config{ChainID: chainID, URLs: known.RPCURLs, Logger: log})
	if err != nil {
		return fail(exitMisuse, err)
	}
	defer nodes.Close()
	conn := &connection{}
	defer conn.close()
	if err := conn.open(ctx, cfg, wait, log); err != nil {
		return fail(exitFailed, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go conn.policies.Run(ctx)
	report := newChainReport(p.stdout, p.stderr, asJSON)
	wc.Chain, wc.Deployment = eventlog.New(nodes, cfg.TrustsNodes(chainID)), known.Registries.Default()
	wc.Ledger, wc.Limits = conn.store, backend.JobLimits(cfg)
	wc.Filter, wc.Report, wc.Logger = conn.policies.SkipJob, report.add, log
	if conn.dispatcher != nil {
		wc.Dispatcher = conn.dispatcher
	}
	code, err := do(wc, conn)
	report.end()
	if err != nil {
		return fail(code, err)
	}
	return code
}

// chainReport prints one line for each event, and the current block if stderr is a terminal.
type chainReport struct {
	out      *printer
	terminal io.Writer // nil: stderr is no terminal
	began    time.Time
	tally    tally
	// Deliveries whose feedback a reorg removed: cancelled before the agent was called, or retracted afterwards.
	cancelled, retracted int
	last                 watch.Report
	visible              bool
	stderr               io.Writer
}

func newChainReport(stdout, stderr io.Writer, asJSON bool) *chainReport {
	r := &chainReport{out: newPrinter(stdout, asJSON), began: time.Now(), stderr: stderr}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		r.terminal = f
	}
	return r
}

func (r *chainReport) add(report watch.Report) {
	r.last = report
	for i, a := range report.Answers {
		answer := intake.Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field, Status: a.Status,
			Problem: intake.DescribeConflict(a, report.Events[i].Job)}
		if a.Verdict == store.Refreshed { // an agent update has no key: the line names the agent instead
			answer.Key = fmt.Sprintf("%d:%s", report.Events[i].Job.ChainID, report.Events[i].Job.AgentID)
		}
		if err := report.Events[i].Err; err != nil {
			answer.Verdict, answer.Path, answer.Problem = intake.Refused, a.Key, err.Error()
		}
		r.tally.countAnswer(answer)
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
	_ = r.out.flush() // the commit stands even if the output cannot be written
	if r.terminal != nil {
		events := r.tally.accepted + r.tally.known + r.tally.conflicts + r.tally.refused + r.tally.refreshed
		fmt.Fprintf(r.terminal, "\r\x1b[Kblock %d, %d behind the head, %d events, %.0f/s", report.To,
			report.Head-min(report.Head, report.To), events, float64(events)/time.Since(r.began).Seconds())
		r.visible = true
	}
}

func (r *chainReport) end() {
	if r.visible {
		fmt.Fprint(r.terminal, "\r\x1b[K")
	}
	if r.last.To > 0 {
		fmt.Fprintf(r.stderr, "enqueue: read to block %d\n", r.last.To)
	}
	r.tally.printTally(r.stderr)
	if r.cancelled+r.retracted > 0 {
		fmt.Fprintf(r.stderr, "enqueue: reorgs took feedback off the chain: %d deliveries cancelled, %d retracted\n",
			r.cancelled, r.retracted)
	}
}

// addVanished prints a line for a delivery whose event a reorg removed from the chain.
func (p *printer) addVanished(block uint64, v store.Vanished) {
	verdict := store.Verdict("vanished") // it had ended, or its kind of event has no retraction
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
		if a.Verdict == store.Refreshed {
			line.Key, line.Agent = "", a.Key
		}
		p.addJSON(line)
	case a.Verdict == intake.Refused:
		fmt.Fprintf(&p.buf, "refused %s block %d: %s\n", oneLine(a.Key), block, oneLine(a.Problem))
	case a.Verdict == store.Refreshed:
		fmt.Fprintf(&p.buf, "refreshed agent %s: its registration changed, read to block %d\n", oneLine(a.Key), block)
	default:
		p.addAnswer(position{}, a)
	}
}
