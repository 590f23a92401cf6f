package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Delivery is the state of a delivery. Raw is the whole answer.
type Delivery struct {
	ID            string          `json:"id"`
	Key           string          `json:"key"`
	Kind          string          `json:"kind"`
	ChainID       uint64          `json:"chainId"`
	AgentID       string          `json:"agentId"`
	Status        string          `json:"status"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	Attempts      int             `json:"attempts"`
	NextAttemptAt *time.Time      `json:"nextAttemptAt"`
	CreatedAt     time.Time       `json:"createdAt"`
	FinishedAt    *time.Time      `json:"finishedAt"`
	Raw           json.RawMessage `json:"-"`
}

// Final reports whether the delivery has ended. After that only an operator's replay changes it.
func (d Delivery) Final() bool { return d.FinishedAt != nil }

// UnmarshalJSON decodes a delivery and keeps its bytes in Raw.
func (d *Delivery) UnmarshalJSON(raw []byte) error {
	type fields Delivery
	if err := json.Unmarshal(raw, (*fields)(d)); err != nil {
		return err
	}
	d.Raw = bytes.Clone(raw)
	return nil
}

// Get returns a delivery by id or by key, with its job, attempts and answers in Raw.
func (c *Client) Get(ctx context.Context, idOrKey string) (d Delivery, err error) {
	parts := strings.Split(idOrKey, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return d, c.call(ctx, http.MethodGet, "/v1/deliveries/"+strings.Join(parts, "/"), nil, &d)
}

// Selection selects deliveries. Empty fields select all.
type Selection struct {
	Agent       string `json:"agent,omitempty"`       // CHAIN:AGENT
	Client      string `json:"client,omitempty"`      // 0x address of the author of the feedback
	Transaction string `json:"transaction,omitempty"` // 0x hash
	Key         string `json:"key,omitempty"`
	Status      string `json:"status,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Kind        string `json:"kind,omitempty"`  // the type of the job
	Since       string `json:"since,omitempty"` // accepted at or after: RFC 3339, or how long ago, as in 24h
	Until       string `json:"until,omitempty"` // accepted before: in the same forms
}

func (s Selection) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"agent": s.Agent, "client": s.Client,
		"transaction": s.Transaction, "key": s.Key,
		"status": s.Status, "reason": s.Reason, "kind": s.Kind, "since": s.Since, "until": s.Until} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// Deliveries returns the selected deliveries, newest first, and reads further pages while the loop continues. It ends
// with the first error.
func (c *Client) Deliveries(ctx context.Context, s Selection) iter.Seq2[Delivery, error] {
	return listPages(s.query(), func(q url.Values) (page []Delivery, next string, err error) {
		var answer struct {
			Deliveries []Delivery
			Next       string
		}
		err = c.call(ctx, http.MethodGet, "/v1/deliveries?"+q.Encode(), nil, &answer)
		return answer.Deliveries, answer.Next, err
	})
}

// pageSize is the number of elements that the client requests in a page.
const pageSize = "100"

// listPages returns the elements of all pages.
func listPages[T any](q url.Values, read func(url.Values) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := maps.Clone(q)
		q.Set("limit", pageSize)
		for {
			page, next, err := read(q)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, element := range page {
				if !yield(element, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			q.Set("cursor", next)
		}
	}
}

const (
	firstLook   = 50 * time.Millisecond
	longestLook = 5 * time.Second
)

// Wait polls the delivery until it has ended, and returns it. If ctx ends first, it returns the last state and ctx's
// error. It continues to poll while the worker is unavailable. A held delivery has not ended: Wait then polls until ctx
// ends, so give ctx a deadline.
func (c *Client) Wait(ctx context.Context, idOrKey string) (d Delivery, err error) {
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		seen, err := c.Get(ctx, idOrKey)
		var refused *Error
		switch {
		case err == nil:
			if d = seen; d.Final() {
				return d, nil
			}
		case errors.As(err, &refused) && !refused.Temporary():
			return d, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d, ctx.Err()
		}
	}
}

// Replay queues a delivery again, unless it was delivered or is running (an *Error with status 409).
func (c *Client) Replay(ctx context.Context, id string) error { return c.moveOne(ctx, id, "replay") }

// Cancel ends a delivery that is neither final nor running (else an *Error with status 409).
func (c *Client) Cancel(ctx context.Context, id string) error { return c.moveOne(ctx, id, "cancel") }

func (c *Client) moveOne(ctx context.Context, id, verb string) error {
	var report MoveReport
	return c.call(ctx, http.MethodPost, "/v1/deliveries/"+url.PathEscape(id)+"/"+verb, struct{}{}, &report)
}

// Move holds the options of ReplayAll and CancelAll.
type Move struct {
	DryRun bool `json:"dryRun"`          // only count
	Force  bool `json:"force,omitempty"` // replay delivered ones too; cancel running ones too
	Rate   int  `json:"rate,omitempty"`  // maximum of deliveries in a second; 0: no limit
}

// MoveReport is the result of ReplayAll and CancelAll.
type MoveReport struct {
	Matched   int64            `json:"matched"`
	Moved     int64            `json:"moved"`
	ByStatus  map[string]int64 `json:"byStatus"`  // of a dry run: the deliveries that would change
	Untouched map[string]int64 `json:"untouched"` // of a dry run: the others
	State     string           `json:"state"`     // done, cancelled or failed
	Audit     int64            `json:"audit"`     // id of the audit row
	Left      []struct {       // those that were not changed
		ID  string `json:"id"`
		Why string `json:"why"`
	} `json:"left"`
}

// ReplayAll queues the selected deliveries again, or counts them. The selection must not be empty. The call lasts as
// long as the rate requires.
func (c *Client) ReplayAll(ctx context.Context, s Selection, m Move) (MoveReport, error) {
	return c.moveAll(ctx, "replay", s, m)
}

// CancelAll ends the selected deliveries, or counts them. The selection must not be empty.
func (c *Client) CancelAll(ctx context.Context, s Selection, m Move) (MoveReport, error) {
	return c.moveAll(ctx, "cancel", s, m)
}

func (c *Client) moveAll(ctx context.Context, verb string, s Selection, m Move) (report MoveReport, err error) {
	return report, c.call(ctx, http.MethodPost, "/v1/deliveries/"+verb, struct {
		Selection
		Move
	}{s, m}, &report)
}
