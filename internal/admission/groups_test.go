package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// visit is an attempt that asks the gates.
type visit struct {
	*Pass
	of        erc8004.Agent
	succeeded bool
}

// gateWorld has the gates of a worker. Its clock moves only when a test moves it.
type gateWorld struct {
	*testing.T
	*Gates
	clock time.Time
	made  atomic.Int64
}

func newGateWorld(t *testing.T, slots int, adapt ...func(*Config)) *gateWorld {
	w := &gateWorld{T: t, clock: time.Now()}
	cfg := Config{Slots: slots, Now: func() time.Time { return w.clock }}
	for _, a := range adapt {
		a(&cfg)
	}
	gates, err := New(cfg)
	heraldtest.Must(t, err)
	w.Gates = gates
	t.Cleanup(w.Close)
	return w
}

func agentOf(id int64) erc8004.Agent {
	return erc8004.Agent{ChainID: 1, Registry: "0x1", ID: fmt.Sprint(id)}
}

func (w *gateWorld) attempt(agent int64) *visit {
	return &visit{Pass: w.Begin(fmt.Sprint(w.made.Add(1))), of: agentOf(agent)}
}

// enters passes the gates of the agent and of url's domain.
func (w *gateWorld) enters(a *visit, url string) error {
	if err := w.slot(a); err != nil {
		return err
	}
	return w.enterDomain(a, url)
}

func (w *gateWorld) enterDomain(a *visit, url string) error {
	_, err := a.AdmitDomain(w.Context(), url, true)
	return err
}

// slot passes the gates of the agent, a second after the attempt before: the used slots are held too long to wait for.
func (w *gateWorld) slot(a *visit) error {
	w.clock = w.clock.Add(time.Second)
	return w.slotNow(a)
}

func (w *gateWorld) slotNow(a *visit) error {
	return a.AdmitAgent(context.WithoutCancel(w.Context()), a.of, a.succeeded)
}

// pause returns the wait of a refusal, and 0 without an error.
func (w *gateWorld) pause(err error) time.Duration {
	w.Helper()
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[*outcome.Failure](err)
	if !ok || f.Reason != outcome.AgentBusy || f.Pause <= 0 {
		w.Fatalf("%#v", err)
	}
	return f.Pause
}

// waits reports whether an attempt is deferred at no cost.
func (w *gateWorld) waits(err error) bool {
	w.Helper()
	d := w.pause(err)
	if d > 0 && d < time.Second {
		w.Error(d)
	}
	return d > 0
}

// refused expects that an attempt is deferred at no cost. rule describes why it must be.
func (w *gateWorld) refused(rule string, err error) {
	w.Helper()
	heraldtest.Equal(w, rule, w.waits(err), true)
}

// refusedFor is refused for an error with a text.
func (w *gateWorld) refusedFor(says string, err error) {
	w.Helper()
	if !w.waits(err) || !strings.Contains(err.Error(), says) {
		w.Errorf("%v, want %q", err, says)
	}
}

// TestNewcomersShareSlots: agents without a success in the last hour use at most half of the slots, and one domain half
// of these, until their attempts are recorded. Other agents get the slots that they need.
func TestNewcomersShareSlots(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 32)
	var held []*visit
	take := func(n int, url func(i int) string) {
		t.Helper()
		for i := range n {
			a := w.attempt(int64(len(held)))
			if err := w.enters(a, url(i)); err != nil {
				t.Fatalf("slot %d of the newcomers: %v", len(held)+1, err)
			}
			held = append(held, a)
		}
	}
	evil := func(i int) string { return fmt.Sprintf("https://x%d.evil.example/mcp", i) }
	take(8, evil)
	ninth := w.attempt(100)
	w.refused("one domain has half of the newcomers' slots", w.enters(ninth, evil(8)))
	ninth.Leave()
	take(8, func(i int) string { return fmt.Sprintf("https://y%d.example/mcp", i) })
	w.refused("newcomers have half of the slots", w.enters(w.attempt(101), "https://z.example/mcp"))

	// An agent that succeeded is no newcomer, at any domain. Either its claim says so, or this process has noted the
	// success.
	known := w.attempt(102)
	known.succeeded = true
	w.NoteOutcome(agentOf(103), true)
	for _, a := range []*visit{known, w.attempt(103)} {
		if err := w.enters(a, evil(0)); err != nil || a.Newcomer() {
			t.Errorf("an agent that succeeded waits: %v", err)
		}
	}
	w.clock = w.clock.Add(ledger.RecentSuccess)
	w.refused("a success of an hour ago does not count", w.enters(w.attempt(103), evil(0)))

	// A released slot can be acquired again. A second release has no effect.
	for range 2 {
		held[0].Leave()
	}
	heraldtest.Must(t, w.enters(w.attempt(104), evil(9)))
	w.refused("a slot is given back once", w.enters(w.attempt(105), "https://z.example/mcp"))
}

// TestNewcomersThatFailed: agents that failed use at most half of the newcomers' slots, so that unknown agents find a
// slot. After one success, an agent counts neither as failed nor as a newcomer.
func TestNewcomersThatFailed(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 32)
	enter := func(agent int64) error {
		return w.enters(w.attempt(agent), fmt.Sprintf("https://x%d-example.com/mcp", agent))
	}
	for agent := range int64(64) {
		w.NoteOutcome(agentOf(agent), false)
	}
	for agent := range int64(64) {
		if err := enter(agent); (agent >= 8) != w.waits(err) {
			t.Fatalf("agent %d, which failed: %v", agent, err)
		}
	}
	for agent := int64(100); agent < 108; agent++ {
		if err := enter(agent); err != nil {
			t.Fatalf("an agent that nobody knows: %v", err)
		}
	}
	w.refused("newcomers have half of the slots", enter(108))
	w.NoteOutcome(agentOf(63), true)
	heraldtest.Must(t, enter(63))
}

// TestSlotOfFileDomainIsReleased: the slot of a file's domain is released when the file has been fetched. The slot of
// the endpoint's domain stays acquired.
func TestSlotOfFileDomainIsReleased(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 4) // one slot for a domain
	a := w.attempt(1)
	heraldtest.Must(t, w.enters(a, "https://a.example/mcp"))
	for _, file := range []string{"https://victim.example/robots.txt", "https://files.a.example/7.json"} {
		release, err := a.AdmitDomain(t.Context(), file, false)
		heraldtest.Must(t, err)
		release()
	}
	heraldtest.Must(t, w.enters(w.attempt(2), "https://victim.example/mcp"))
	w.refused("the endpoint's domain is still in use", w.enters(w.attempt(3), "https://a.example/mcp"))
}

// TestNewcomersOfANamedDomain: agents that name another party's domain, or files there, use at most half of its slots,
// so that the agents of the domain get the rest. Together they use at most the domain's slots.
func TestNewcomersOfANamedDomain(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 32) // 8 slots for a domain, 4 for agents that name it
	enter := func(agent int64, own bool) bool {
		a := w.attempt(agent)
		w.clock = w.clock.Add(time.Second)
		heraldtest.Must(t, w.slotNow(a))
		_, err := a.AdmitDomain(t.Context(), "https://victim.example:81/mcp", own)
		if w.waits(err) {
			a.Leave()
			return false
		}
		return true
	}
	for i := range int64(6) {
		heraldtest.Equal(t, fmt.Sprintf("agent %d that names the domain has a slot", i+1), enter(i, false), i < 4)
	}
	for i := range int64(6) {
		heraldtest.Equal(t, fmt.Sprintf("the domain's own agent %d has a slot", i+1), enter(100+i, true), i < 4)
	}
}

// TestNewcomersOfFewSlots: newcomers have at least one slot, and a file at the agent's own domain needs no second slot
// of the domain.
func TestNewcomersOfFewSlots(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 1)
	a := w.attempt(1)
	if err := errors.Join(w.enters(a, "https://a.example/mcp"), w.enterDomain(a, "https://files.a.example/7.json"),
		w.enterDomain(a, "ipfs://bafy/7.json")); err != nil {
		t.Error(err)
	}
	w.refused("there is one slot", w.enters(w.attempt(2), "https://b.example/mcp"))
	a.Leave()
	heraldtest.Must(t, w.enters(w.attempt(2), "https://a.example/mcp"))
	var none *Gates
	a = &visit{Pass: none.Begin("x")}
	if err := errors.Join(w.enters(a, "https://a.example"), a.CheckFiles(effort.Fetches)); err != nil || a.Newcomer() {
		t.Error(err)
	}
}

// TestNewcomersWaitAMoment: if attempts are short, an attempt without a slot waits for the next one that is released.
// The backlog of unknown agents is not deferred again and again.
func TestNewcomersWaitAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gates, err := New(Config{Slots: 8})
		heraldtest.Must(t, err)
		defer gates.Close()
		w := &gateWorld{T: t, Gates: gates}
		first, second := w.attempt(1), w.attempt(2)
		for _, a := range []*visit{first, w.attempt(11), w.attempt(12), w.attempt(13)} {
			heraldtest.Must(t, w.slotNow(a))
		}
		entered := make(chan error, 1)
		go func() { entered <- w.slotNow(second) }()
		synctest.Wait() // it waits
		first.Leave()
		heraldtest.Must(t, <-entered)
		w.refused("there are four slots", w.slotNow(w.attempt(3)))
	})
}

// TestNewcomersDoNotWaitForHangingOnes: attempts do not wait for newcomers that hang. Only one waits for the single
// attempt that does not hang, so that the other slots stay free for agents that answer.
func TestNewcomersDoNotWaitForHangingOnes(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{0, maxSlotWait * 9 / 10} {
		t.Run(fmt.Sprint(took), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const slots, share = 32, 16
				w := newGateWorld(t, slots)
				for agent := range int64(share - 1) {
					heraldtest.Must(t, w.slotNow(w.attempt(agent)))
				}
				if took > 0 {
					ended := w.attempt(99)
					heraldtest.Must(t, w.slotNow(ended))
					w.clock = w.clock.Add(took)
					ended.Leave()
				}
				w.clock = w.clock.Add(2 * maxSlotWait) // the earlier attempts hang
				moving := w.attempt(100)
				heraldtest.Must(t, w.slotNow(moving))
				putOff := make(chan error, slots)
				for agent := range int64(slots) {
					go func() { putOff <- w.slotNow(w.attempt(200 + agent)) }()
				}
				synctest.Wait()
				heraldtest.Equal(t, "newcomers wait for the one that does not hang", slots-len(putOff), 1)
				moving.Leave()
				synctest.Wait()
			})
		})
	}
}

// TestNewcomersComeBackInTurn: each of many deferred attempts gets a time of its own, according to the usual duration
// of attempts. A flood is deferred once, not again and again.
func TestNewcomersComeBackInTurn(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 8)
	took := w.attempt(1)
	heraldtest.Must(t, w.enters(took, "https://a.example"))
	w.clock = w.clock.Add(2 * time.Second)
	took.Leave()
	for i := range int64(4) {
		heraldtest.Must(t, w.enters(w.attempt(2+i), fmt.Sprintf("https://b%d.example", i)))
	}
	w.clock = w.clock.Add(time.Second)
	last := time.Duration(0)
	for i := range int64(100) {
		v := w.pause(w.slotNow(w.attempt(10 + i)))
		if want := last + 2*time.Second/4/returns; i > 0 && v != want {
			t.Fatalf("number %d comes back in %s, want %s", i, v, want)
		}
		last = v
	}
}

// TestNewcomersComeBackInTime: with any number of deferred attempts, the wait is at most five minutes, and the longest
// waits differ.
func TestNewcomersComeBackInTime(t *testing.T) {
	t.Parallel()
	const longest = 5 * time.Minute
	w := newGateWorld(t, 32)
	for i := range int64(16) {
		heraldtest.Must(t, w.slotNow(w.attempt(i)))
	}
	w.clock = w.clock.Add(time.Second)
	waits := map[time.Duration]bool{}
	for i := range int64(20_000) {
		v := w.pause(w.slotNow(w.attempt(1000 + i)))
		if v > longest || i > 10_000 && v < longest/2 {
			t.Fatalf("number %d: comes back in %s", i, v)
		}
		waits[v] = true
	}
	if len(waits) < 10_000 {
		t.Errorf("they come back at %d times", len(waits))
	}
	w.clock = w.clock.Add(longest)
	if v := w.pause(w.slotNow(w.attempt(999))); v > 2*time.Second {
		t.Errorf("after a quiet time: %s", v)
	}
}

// TestGroupsUseTheirSlots: few slots stay unused while newcomers wait. Eight slots need 200 s for 500 attempts, of which
// every second takes 6 s.
func TestGroupsUseTheirSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slots, newcomers = 16, 500
		w := newGateWorld(t, slots, func(c *Config) { c.Now = time.Now })
		began, free := time.Now(), make(chan bool, slots)
		var all sync.WaitGroup
		for agent := range int64(newcomers) {
			all.Go(func() {
				for wait := time.Duration(1); wait > 0; {
					free <- true
					a := w.attempt(agent)
					time.Sleep(5 * time.Millisecond) // claim
					if wait = w.pause(w.slotNow(a)); wait == 0 {
						time.Sleep(time.Second/5 + time.Duration(agent%2)*6*time.Second)
					}
					a.Leave()
					<-free
					time.Sleep(wait)
				}
			})
		}
		all.Wait()
		if all := time.Since(began); all > 220*time.Second {
			t.Errorf("all newcomers had an attempt after %s", all)
		}
	})
}

// TestRegistrableDomain: more host names of a domain, or more addresses of a network, count as the same domain.
func TestRegistrableDomain(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://a.evil.com/mcp":              "evil.com",
		"https://b.a.Evil.COM.:8443":          "evil.com",
		"https://b.ｅvil。com":                  "evil.com", // as it is dialled
		"https://x.evil.co.uk":                "evil.co.uk",
		"https://user.github.io/mcp":          "user.github.io", // a host of other parties' pages is a public suffix
		"https://github.io":                   "github.io",
		"http://localhost:8080":               "localhost",
		"http://127.0.0.1:8080/mcp":           "127.0.0.1",
		"http://[::ffff:127.0.0.1]/":          "127.0.0.1",
		"https://[2001:db8:1:2:3::4]/":        "2001:db8:1:2::/64",
		"https://[2001:db8:1:2:ffff::]:8443/": "2001:db8:1:2::/64",
		"ipfs://bafy/a.json":                  "",
		"":                                    "",
		"https://a.example\x7f/not a URL":     "",
		"data:application/json,{}":            "",
	} {
		heraldtest.Equal(t, url, registrableDomain(url), want)
	}
}

// TestCostlyAgentsShareSlots: costly agents use at most half of the slots, and together with newcomers three quarters.
// Quick agents get the slots that they need.
func TestCostlyAgentsShareSlots(t *testing.T) {
	t.Parallel()
	clock := heraldtest.NewClock(time.Now())
	b, err := effort.New(effort.Config{Size: time.Minute, Now: clock.Now})
	heraldtest.Must(t, err)
	t.Cleanup(b.Close)
	w := newGateWorld(t, 32, func(c *Config) { c.Efforts, c.Now = b, clock.Now })
	known := func(agent int64, long bool) *visit {
		a := w.attempt(agent)
		a.succeeded = true
		if long {
			h, err := b.Begin(t.Context(), a.of)
			heraldtest.Must(t, err)
			h.Spend(effort.Calls, 1, 2*time.Second)
			h.End()
		}
		return a
	}
	admit := func(a *visit) error {
		clock.Advance(time.Second) // the used slots are held too long to wait for them
		return w.slotNow(a)
	}
	var held []*visit
	take := func(n int, what string, make func(i int64) *visit) {
		t.Helper()
		for range n {
			a := make(int64(len(held)))
			if err := admit(a); err != nil {
				t.Fatalf("%s, slot %d: %v", what, len(held)+1, err)
			}
			held = append(held, a)
		}
	}
	take(16, "costly", func(i int64) *visit { return known(i, true) })
	late := known(100, true)
	w.refusedFor("share 16 of this worker's slots, and these are in use", admit(late))
	late.Leave()
	take(8, "newcomers", w.attempt)
	newcomer := w.attempt(101)
	w.refusedFor("together share 24", admit(newcomer))
	newcomer.Leave()
	take(40, "quick", func(i int64) *visit { return known(i, false) })

	for range 2 { // a second release has no effect
		held[0].Leave()
	}
	heraldtest.Must(t, admit(known(102, true)))
	w.refused("a slot is given back once", admit(known(103, true)))
	for n := range int64(24) {
		if u := b.Usage(t.Context(), held[n].of); u.UnderWay > 1 {
			t.Errorf("agent %d: %+v", n, u)
		}
	}
}
