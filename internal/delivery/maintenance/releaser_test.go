package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// nobody is a Dispatcher that drops the tasks.
type nobody struct{}

func (nobody) Dispatch(_ context.Context, tasks []ledger.Task) int { return len(tasks) }

func newReleaser(t *testing.T, cfg ReleaserConfig) *Releaser {
	t.Helper()
	r, err := NewReleaser(cfg)
	heraldtest.Must(t, err)
	return r
}

// calledLedger records the agents whose deliveries were released after they had been held for an endpoint or a
// credential.
type calledLedger struct {
	away bool
	held map[string]int64
	got  []string
}

func (l *calledLedger) ReleaseEnabled(context.Context, func(erc8004.Agent) bool) (int, []ledger.Task, error) {
	return 0, nil, nil
}

func (l *calledLedger) AgentRow(_ context.Context, a erc8004.Agent) (records.AgentRow, error) {
	n, ok := l.held[a.ID]
	if !ok {
		return records.AgentRow{}, ledger.ErrNotFound
	}
	return records.AgentRow{Open: map[outcome.Status]int64{outcome.Held: n}}, nil
}

func (l *calledLedger) ReleaseHeld(_ context.Context, a erc8004.Agent, reasons ...outcome.Reason) (int, []ledger.Task, error) {
	if l.away {
		return 0, nil, errors.New("away")
	}
	l.got = append(l.got, fmt.Sprint(a.ID, reasons))
	return 1, nil, nil
}

// TestCallable: a callable agent's deliveries are released in each round until Again has passed, also after failed
// rounds, and once more after that: a delivery that was claimed before the change is held by then. Agents without held
// deliveries cause no release.
func TestCallable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &calledLedger{held: map[string]int64{"1": 1, "2": 0}, away: true}
		r := newReleaser(t, ReleaserConfig{Ledger: l, Records: l, Dispatcher: nobody{}, Logger: slog.New(slog.DiscardHandler)})
		released := func(rounds int) int {
			l.got = nil
			for range rounds {
				if err := r.Release(t.Context()); (err != nil) != l.away {
					t.Error(err)
				}
			}
			return len(l.got)
		}
		r.MarkCallable([]erc8004.Agent{{ChainID: 1, ID: "1"}, {ChainID: 1, ID: "2"}, {ChainID: 1, ID: "3"}})
		heraldtest.Equal(t, "released while Postgres is away", released(2), 0)
		l.away = false
		heraldtest.Equal(t, "released at once", released(3), 3) // two other changes of the file follow quickly
		heraldtest.Equal(t, "released", l.got[0], "1[auth_required chain_unconfigured gateway_unconfigured]")
		time.Sleep(r.Again)
		heraldtest.Equal(t, "released after Again", released(3), 1)
	})
}

// releases is a ledger whose calls return the errors that the test sends.
type releases struct {
	ReleaserLedger // nil, like the records: no agent is callable
	ReleaserRecords

	asked chan bool
	err   chan error
}

func (r releases) ReleaseEnabled(context.Context, func(erc8004.Agent) bool) (int, []ledger.Task, error) {
	r.asked <- true
	return 0, nil, <-r.err
}

// TestReleaser: a round runs at the start, periodically, after a wake-up, and again after a failed one.
func TestReleaser(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := releases{asked: make(chan bool), err: make(chan error)}
	ticks := make(chan time.Time)
	r := newReleaser(t, ReleaserConfig{Ledger: l, Records: l, Dispatcher: nobody{}, Again: time.Millisecond, Ticks: ticks,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	for _, err := range []error{nil, errors.New("away"), errors.New("away"), nil, nil} {
		heraldtest.Receive(t, "a round", l.asked)
		l.err <- err
	}
	select {
	case <-l.asked:
		t.Error("a round that nobody asked for")
		l.err <- nil
	case <-time.After(50 * time.Millisecond):
	}
	r.Wake()
	for range 2 {
		heraldtest.Receive(t, "a round", l.asked)
		l.err <- nil
	}
	for range 2 { // periodic rounds
		select {
		case ticks <- time.Time{}:
		case <-time.After(20 * time.Second):
			t.Fatal("it does not hear of the time")
		}
		heraldtest.Receive(t, "a slow round", l.asked)
		l.err <- nil
	}
	cancel()
	wg.Wait()
	heraldtest.Equal(t, "failures in the log", strings.Count(log.String(), "not released yet"), 2)
}
