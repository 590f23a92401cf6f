package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// newcomerWorld makes attempts at agents and acquires a worker's slots for them.
type newcomerWorld struct {
	*testing.T
	*Newcomers
	clock time.Time
}

func newNewcomerWorld(t *testing.T, slots int) *newcomerWorld {
	w := &newcomerWorld{T: t, clock: time.Now()}
	w.Newcomers = must(NewNewcomers(slots, nil, func() time.Time { return w.clock }))
	t.Cleanup(w.Close)
	return w
}

func (w *newcomerWorld) attempt(agent int64) *attempt {
	return &attempt{claim: &store.Claim{ID: uuid.New(), No: 1, Job: job.Job{Kind: job.KindNewFeedback, ChainID: 1, IdentityRegistry: common.HexToAddress("0x1"),
		AgentID: big.NewInt(agent)}}}
}

// enters acquires a slot, and one of url's domain.
func (w *newcomerWorld) enters(a *attempt, url string) error {
	w.clock = w.clock.Add(time.Second) // the used slots are held too long to wait for them
	if err := w.slot(a); err != nil {
		return err
	}
	return w.enterDomain(a, url)
}

func (w *newcomerWorld) enterDomain(a *attempt, url string) error {
	_, err := a.slots.acquireDomain(w.Context(), url, true)
	return err
}

// slot acquires a slot.
func (w *newcomerWorld) slot(a *attempt) (err error) {
	a.slots, err = w.acquireSlot(w.Context(), a.claim)
	return err
}

// waits reports whether an attempt is deferred at no cost.
func (w *newcomerWorld) waits(err error) bool {
	w.Helper()
	if err == nil {
		return false
	}
	v := classify.Error(err)
	if v.Reason != outcome.AgentBusy || v.Ending != outcome.Wait || !v.Free || v.Pause < time.Second || !v.Limited() {
		w.Errorf("%+v", v)
	}
	return true
}

// TestNewcomersShareSlots: agents without a success in the last hour use at most half of the slots, and one domain half
// of these, until their attempts are recorded. Other agents get the slots that they need.
func TestNewcomersShareSlots(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 32)
	var held []*attempt
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
	if !w.waits(w.enters(ninth, evil(8))) {
		t.Error("one domain has more than half of the newcomers' slots")
	}
	ninth.slots.release(t.Context())
	take(8, func(i int) string { return fmt.Sprintf("https://y%d.example/mcp", i) })
	if !w.waits(w.enters(w.attempt(101), "https://z.example/mcp")) {
		t.Error("newcomers have more than half of the slots")
	}

	// An agent that succeeded is no newcomer, at any domain. Either its claim says so, or this process has noted the
	// success.
	known := w.attempt(102)
	known.claim.Succeeded = true
	w.noteOutcome(w.attempt(103).claim.Agent(), true)
	for _, a := range []*attempt{known, w.attempt(103)} {
		if err := w.enters(a, evil(0)); err != nil || a.slots != nil {
			t.Errorf("an agent that succeeded waits: %v, %+v", err, a.slots)
		}
	}
	w.clock = w.clock.Add(store.RecentSuccess)
	if !w.waits(w.enters(w.attempt(103), evil(0))) {
		t.Error("a success of an hour ago counts")
	}

	// A released slot can be acquired again. A second release has no effect.
	for range 2 {
		held[0].slots.release(t.Context())
	}
	if err := w.enters(w.attempt(104), evil(9)); err != nil {
		t.Errorf("after a slot was given back: %v", err)
	}
	if !w.waits(w.enters(w.attempt(105), "https://z.example/mcp")) {
		t.Error("one slot was given back twice")
	}
}

// TestNewcomersThatFailed: agents that failed use at most half of the newcomers' slots, so that unknown agents find a
// slot. After one success, an agent counts neither as failed nor as a newcomer.
func TestNewcomersThatFailed(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 32)
	enter := func(agent int64) error {
		return w.enters(w.attempt(agent), fmt.Sprintf("https://x%d-example.com/mcp", agent))
	}
	for agent := range int64(64) {
		w.noteOutcome(w.attempt(agent).claim.Agent(), false)
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
	if !w.waits(enter(108)) {
		t.Error("newcomers have more than half of the slots")
	}
	w.noteOutcome(w.attempt(63).claim.Agent(), true)
	if err := enter(63); err != nil {
		t.Errorf("an agent that succeeded since: %v", err)
	}
}

// TestSlotOfFileDomainIsReleased: the slot of a file's domain is released when the file has been fetched. The slot of
// the endpoint's domain stays acquired.
func TestSlotOfFileDomainIsReleased(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 4) // one slot for a domain
	a := w.attempt(1)
	heraldtest.Must(t, w.enters(a, "https://a.example/mcp"))
	for _, file := range []string{"https://victim.example/robots.txt", "https://files.a.example/7.json"} {
		release, err := a.slots.acquireDomain(t.Context(), file, false)
		heraldtest.Must(t, err)
		release()
	}
	if err := w.enters(w.attempt(2), "https://victim.example/mcp"); err != nil {
		t.Error(err)
	}
	b := &groupPermits{newcomers: w.Newcomers, token: "x"}
	if !w.waits(b.acquire(t.Context(), w.bounded, domainSlot+"a.example", "")) {
		t.Error("the endpoint's domain was given back with the file's")
	}
}

// TestNewcomersOfANamedDomain: agents that name another party's domain, or files there, use at most half of its slots,
// so that the agents of the domain get the rest. Together they use at most the domain's slots.
func TestNewcomersOfANamedDomain(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 32) // 8 slots for a domain, 4 for agents that name it
	enter := func(agent int64, own bool) bool {
		a := w.attempt(agent)
		w.clock = w.clock.Add(time.Second)
		heraldtest.Must(t, w.slot(a))
		_, err := a.slots.acquireDomain(t.Context(), "https://victim.example:81/mcp", own)
		if w.waits(err) {
			a.slots.release(t.Context())
			return false
		}
		return true
	}
	for i := range int64(6) {
		if got := enter(i, false); got != (i < 4) {
			t.Errorf("agent %d that names the domain has a slot: %t", i+1, got)
		}
	}
	for i := range int64(6) {
		if got := enter(100+i, true); got != (i < 4) {
			t.Errorf("the domain's own agent %d has a slot: %t", i+1, got)
		}
	}
}

// TestNewcomersOfFewSlots: newcomers have at least one slot, and a file at the agent's own domain needs no second slot
// of the domain.
func TestNewcomersOfFewSlots(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 1)
	a := w.attempt(1)
	if err := errors.Join(w.enters(a, "https://a.example/mcp"), w.enterDomain(a, "https://files.a.example/7.json"),
		w.enterDomain(a, "ipfs://bafy/7.json")); err != nil {
		t.Error(err)
	}
	if !w.waits(w.enters(w.attempt(2), "https://b.example/mcp")) {
		t.Error("there were two slots")
	}
	a.slots.release(t.Context())
	if err := w.enters(w.attempt(2), "https://a.example/mcp"); err != nil {
		t.Error(err)
	}
	var none *Newcomers
	var err error
	a.slots, err = none.acquireSlot(t.Context(), a.claim)
	if err := errors.Join(err, w.enterDomain(a, "https://a.example")); err != nil || a.slots != nil {
		t.Error(err)
	}
}

// TestNewcomersWaitAMoment: if attempts are short, an attempt without a slot waits for the next one that is released.
// The backlog of unknown agents is not deferred again and again.
func TestNewcomersWaitAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := must(NewNewcomers(8, nil, nil))
		defer n.Close()
		w := &newcomerWorld{T: t, Newcomers: n}
		first, second := w.attempt(1), w.attempt(2)
		for _, a := range []*attempt{first, w.attempt(11), w.attempt(12), w.attempt(13)} {
			heraldtest.Must(t, w.slot(a))
		}
		entered := make(chan error, 1)
		go func() { entered <- w.slot(second) }()
		synctest.Wait() // it waits
		first.slots.release(t.Context())
		if err := <-entered; err != nil {
			t.Error(err)
		}
		if third := w.slot(w.attempt(3)); !w.waits(third) {
			t.Error("there are five slots")
		}
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
				w := newNewcomerWorld(t, slots)
				for agent := range int64(share - 1) {
					heraldtest.Must(t, w.slot(w.attempt(agent)))
				}
				if took > 0 {
					ended := w.attempt(99)
					heraldtest.Must(t, w.slot(ended))
					w.clock = w.clock.Add(took)
					ended.slots.release(t.Context())
				}
				w.clock = w.clock.Add(2 * maxSlotWait) // the earlier attempts hang
				moving := w.attempt(100)
				heraldtest.Must(t, w.slot(moving))
				putOff := make(chan error, slots)
				for agent := range int64(slots) {
					go func() { putOff <- w.slot(w.attempt(200 + agent)) }()
				}
				synctest.Wait()
				heraldtest.Equal(t, "newcomers wait for the one that does not hang", slots-len(putOff), 1)
				moving.slots.release(t.Context())
				synctest.Wait()
			})
		})
	}
}

// TestNewcomersComeBackInTurn: each of many deferred attempts gets a time of its own, according to the usual duration
// of attempts. A flood is deferred once, not again and again.
func TestNewcomersComeBackInTurn(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 8)
	took := w.attempt(1)
	heraldtest.Must(t, w.enters(took, "https://a.example"))
	w.clock = w.clock.Add(2 * time.Second)
	took.slots.release(t.Context())
	for i := range int64(4) {
		heraldtest.Must(t, w.enters(w.attempt(2+i), fmt.Sprintf("https://b%d.example", i)))
	}
	w.clock = w.clock.Add(time.Second)
	last := time.Duration(0)
	for i := range int64(100) {
		v := classify.Error(w.slot(w.attempt(10 + i)))
		if want := last + 2*time.Second/4; i > 0 && v.Pause != want {
			t.Fatalf("number %d comes back in %s, want %s", i, v.Pause, want)
		}
		last = v.Pause
	}
}

// TestNewcomersComeBackApart: while the duration of attempts is unknown, deferred attempts do not return all at the
// same time.
func TestNewcomersComeBackApart(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 2)
	heraldtest.Must(t, w.enters(w.attempt(1), "https://a.example"))
	w.clock = w.clock.Add(time.Second)
	last := time.Duration(0)
	for i := range int64(500) {
		v := classify.Error(w.slot(w.attempt(2 + i)))
		if i > 0 && v.Pause-last != minReturnGap {
			t.Fatalf("number %d comes back %s after the one before", i, v.Pause-last)
		}
		last = v.Pause
	}
}

// TestNewcomersComeBackInTime: with any number of deferred attempts, the wait is at most five minutes, and the longest
// waits differ.
func TestNewcomersComeBackInTime(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 32)
	for i := range int64(16) {
		heraldtest.Must(t, w.slot(w.attempt(i)))
	}
	w.clock = w.clock.Add(time.Second)
	waits := map[time.Duration]bool{}
	for i := range int64(20_000) {
		v := classify.Error(w.slot(w.attempt(1000 + i)))
		if v.Reason != outcome.AgentBusy || v.Pause > maxReturnWait || i > 10_000 && v.Pause < maxReturnWait/2 {
			t.Fatalf("number %d: %s, comes back in %s", i, v.Reason, v.Pause)
		}
		waits[v.Pause] = true
	}
	if len(waits) < 10_000 {
		t.Errorf("they come back at %d times", len(waits))
	}
	w.clock = w.clock.Add(maxReturnWait)
	if v := classify.Error(w.slot(w.attempt(999))); v.Pause > 2*time.Second {
		t.Errorf("after a quiet time: %s", v.Pause)
	}
}

// TestNewcomersOfALocalHost: a host whose name equals an internal key still counts as a domain.
func TestNewcomersOfALocalHost(t *testing.T) {
	t.Parallel()
	w := newNewcomerWorld(t, 4) // one slot for a domain
	heraldtest.Must(t, w.enters(w.attempt(1), "http://newcomers:8080/mcp"))
	if !w.waits(w.enters(w.attempt(2), "http://newcomers:8080/mcp")) {
		t.Error("the host called newcomers is not counted as a domain")
	}
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
		if got := registrableDomain(url); got != want {
			t.Errorf("%q: %q, want %q", url, got, want)
		}
	}
}

// TestFailuresThatBlameNoAgent: an agent does not count as failed because of a file that a client named, because it
// declined a client's content, or because of an endpoint, tool or timeout that a job named.
func TestFailuresThatBlameNoAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	healthy := newAgent(t)
	failing := newAgent(t, onCall(func(_ int, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		http.Error(rw, "broken", http.StatusInternalServerError)
		return true
	}))
	silent := newAgent(t, onCall(func(_ int, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		<-r.Context().Done()
		return true
	}))
	picky := newAgent(t, onCall(func(_ int, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		reply(rw, id, `{"isError":true,"content":[{"type":"text","text":"this is spam"}]}`)
		return true
	}))
	strict := newAgent(t, func(a *agent) { a.schema = `{"type":"object","properties":{"tag1":{"maxLength":3}}}` })
	k := w.newWorker(func(c *Config) { c.Newcomers = must(NewNewcomers(32, nil, nil)) })
	for name, c := range map[string]struct {
		at     *agent
		file   string
		action map[string]any
		want   bool
	}{
		"its own failure":               {failing, "", nil, true},
		"its own silence":               {silent, "", nil, true},
		"a file that is no":             {healthy, "https://10.0.0.1/x", nil, false},
		"what it declines":              {picky, "", nil, false},
		"what its schema does not take": {strict, "", nil, false},
		"the job's endpoint":            {healthy, "", own(failing.URL, nil), false},
		"the job's tool":                {healthy, "", map[string]any{"toolName": "agent.receiveOther"}, false},
		"the job's impatience":          {silent, "", map[string]any{"timeoutMs": 3000}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(c.at.URL)), URI: c.file, Tag1: "a long tag"})
			if c.action != nil {
				j = with(j, c.action)
			}
			id := w.accept(j)
			note, err := k.deliver(t.Context(), id, 1)
			if err == nil && note == "" {
				t.Fatal("it was delivered")
			}
			d := w.row(id)
			agent, _ := new(big.Int).SetString(d.AgentID, 10)
			claim := &store.Claim{Job: job.Job{ChainID: w.net.ChainID(), IdentityRegistry: w.net.Deployment().Identity, AgentID: agent}}
			if _, failed := k.executor.Newcomers.weighAgent(claim); failed != c.want {
				t.Errorf("after %q, %v it failed: %v", note, err, failed)
			}
		})
	}
}
