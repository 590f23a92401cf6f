//go:build chaos

package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// eventListener follows GET /v1/events. When the connection ends, it reconnects with its last id, to the next worker.
type eventListener struct {
	addresses []string
	client    *http.Client
	last      string
	ready     func() // called when it is connected for the first time
	delivered map[uuid.UUID]int
}

// follow listens until want deliveries were reported, or ctx ends. It returns the number of reconnections.
func (l *eventListener) follow(ctx context.Context, want int) (returns int) {
	for turn := 0; ctx.Err() == nil && len(l.delivered) < want; turn++ {
		l.listen(ctx, l.addresses[turn%len(l.addresses)], want)
		returns = turn
	}
	return returns
}

func (l *eventListener) listen(ctx context.Context, address string, want int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/v1/events?status=delivered", nil)
	if err != nil {
		return
	}
	if l.last != "" {
		req.Header.Set("Last-Event-ID", l.last)
	}
	res, err := l.client.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			l.last = value
			if l.ready != nil {
				l.ready()
				l.ready = nil
			}
			if len(l.delivered) == want {
				return
			}
		case "data":
			var e struct {
				DeliveryID uuid.UUID `json:"deliveryId"`
			}
			if json.Unmarshal([]byte(value), &e) == nil {
				l.delivered[e.DeliveryID]++
			}
		}
	}
}

// TestChaosEvents: a thousand listeners at three workers receive every delivery once, although one of the workers is
// killed.
func TestChaosEvents(t *testing.T) {
	const listeners, deliveries = 1000, 1000
	r := newRow(t, "events, kill -9", 60)
	r.hire(3, 14)
	var addresses []string
	for _, w := range r.workers {
		address, err := w.Address()
		r.must(err)
		addresses = append(addresses, address)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	all := make([]*eventListener, listeners)
	var ready, gone sync.WaitGroup
	var returned atomic.Int64
	ctx := r.within(3 * time.Minute)
	for i := range all {
		// Listeners of the killed worker move to the others. The others stay.
		mine := []string{addresses[i%3], addresses[1+i%2]}
		ready.Add(1)
		all[i] = &eventListener{addresses: mine, client: client, ready: ready.Done, delivered: map[uuid.UUID]int{}}
		gone.Go(func() {
			if all[i].follow(ctx, deliveries) > 0 {
				returned.Add(1)
			}
		})
	}
	ready.Wait()

	r.enqueue(deliveries, r.everyone()...)
	r.underWay(deliveries/4, 1)
	r.must(r.workers[0].Kill())
	v := r.settle(3 * time.Minute)
	gone.Wait()
	missed, twice := 0, 0
	for _, l := range all {
		for id := range v.rows {
			switch n := l.delivered[id]; {
			case n == 0:
				missed++
			case n > 1:
				twice++
			}
		}
	}
	r.figures.Add("listeners", listeners).Add("came_back", returned.Load()).Add("missed", missed).Add("heard_twice", twice)
	if missed > 0 || twice > 0 || returned.Load() < listeners/4 {
		t.Errorf("%d changes were missed, %d heard twice, %d listeners came back", missed, twice, returned.Load())
	}
	r.print()
}
