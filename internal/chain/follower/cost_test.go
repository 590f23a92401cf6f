package follower

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// meter counts HTTP requests to a node and the calls in them, which providers bill.
type meter struct{ requests, calls int }

func (m *meter) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	asked, _, err := chaintest.ReadRequests(body)
	m.requests, m.calls = m.requests+1, m.calls+len(asked)
	if err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(req)
}

// TestRequestsOfAFollower compares the table in docs/operator/chain.md with the measured requests of a poll: without a new
// block, with one, with four, and with an event.
func TestRequestsOfAFollower(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page, err := os.ReadFile("../../../docs/operator/chain.md")
	heraldtest.Must(t, err)
	for _, trusted := range []bool{true, false} {
		m := &meter{}
		client := eventlog.New(newPool(t, node.Config{ChainID: w.Net.ChainID(), URLs: []secret.Secret{secret.New(w.Net.URL())}, Transport: m}), trusted)
		f := New(client, Config{Deployment: w.Net.Deployment(), Contracts: []common.Address{w.Net.Deployment().Reputation}, Limits: limits,
			Handle: func(context.Context, Range) error { return nil }})
		poll := func() string {
			t.Helper()
			for more := true; more; {
				more, err = f.readNext(w.Ctx)
				heraldtest.Must(t, err)
			}
			defer func() { *m = meter{} }()
			return fmt.Sprintf("%d (%d)", m.requests, m.calls)
		}
		poll()
		f.finalizedAsked = time.Now().Add(time.Hour) // it is read once a minute and has a row of its own
		idle := poll()
		w.Mine(1)
		empty := poll()
		w.Mine(4)
		four := poll()
		w.Feedback()
		event := poll()
		row := fmt.Sprintf("| one poll | %s | %s | %s | %s |", idle, empty, four, event)
		if !strings.Contains(string(page), row) {
			t.Errorf("trusted %t: docs/operator/chain.md says %q, measured:\n%s", trusted, regexp.MustCompile(`(?m)^\| one poll .*$`).FindString(string(page)), row)
		}
	}
}

// TestCostOfFollowing compares docs/bench-chain.md with the requests and calls per hour at the head of a chain, measured in
// ten simulated minutes, or three on fast chains. No request has more than proofCalls calls, and the follower stays at
// the head. With -v it prints the rows.
func TestCostOfFollowing(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/bench-chain.md")
	heraldtest.Must(t, err)
	for _, pace := range paces {
		row := fmt.Sprintf("| %s |", pace)
		within := 3 * time.Minute
		if pace > 2*time.Second {
			within = 10 * time.Minute
		}
		for _, c := range []struct {
			trusted, full, wakes bool
			nodes                int
		}{{trusted: true, nodes: 1}, {nodes: 1}, {full: true, nodes: 1}, {full: true, nodes: 2}, {trusted: true, wakes: true, nodes: 1},
			{full: true, wakes: true, nodes: 1}} {
			requests, calls := 0, 0
			synctest.Test(t, func(t *testing.T) {
				var stubs []*chainStub
				for range c.nodes {
					s := newChainStub(t, pace)
					s.full, s.finality = c.full, 20*time.Minute
					stubs = append(stubs, s)
				}
				f, _ := newStubFollower(t, newStubReader(t, c.trusted, stubs...), Config{From: stubs[0].head()})
				if c.wakes {
					f.watchHeads = func(ctx context.Context) (<-chan struct{}, func()) { return wakeEach(ctx, pace) }
				}
				followFor(t, f, within)
				perHour := int(time.Hour / within)
				if behind := stubs[0].head() - (f.next - 1); time.Duration(behind)*pace > max(3*time.Second, pace) {
					t.Errorf("%s, %+v: it is %d blocks behind", pace, c, behind)
				}
				for _, s := range stubs {
					if s.most > proofCalls {
						t.Errorf("%s, %+v: %d calls in one request", pace, c, s.most)
					}
					r, n := s.countRequests()
					requests, calls = requests+perHour*r, calls+perHour*n
				}
			})
			row += fmt.Sprintf(" %s (%s) |", thousands(requests), thousands(calls))
		}
		t.Log(row)
		documented := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s \| .*\(.*$`, pace)).FindString(string(page))
		if !isClose(documented, row) {
			t.Errorf("docs/bench-chain.md says\n%s, measured:\n%s", documented, row)
		}
	}
}

// isClose reports whether the numbers of two rows differ by at most 2 %.
func isClose(a, b string) bool {
	number := regexp.MustCompile(`[\d,]{2,}`)
	as, bs := number.FindAllString(a, -1), number.FindAllString(b, -1)
	for i := range as {
		x, errX := strconv.ParseFloat(strings.ReplaceAll(as[i], ",", ""), 64)
		if i >= len(bs) || errX != nil {
			return false
		}
		y, errY := strconv.ParseFloat(strings.ReplaceAll(bs[i], ",", ""), 64)
		if errY != nil || x < 0.98*y || x > 1.02*y {
			return false
		}
	}
	return len(as) == len(bs) && len(as) > 0
}

// thousands formats a number with commas.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
