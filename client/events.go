package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Event is a change of a delivery's status or reason.
type Event struct {
	// ID is the position in the stream. Events resumes after it.
	ID string `json:"-"`
	// Gap: events before this one were dropped, because more than 72 hours passed. The other fields, but for ID, are
	// empty. Read the deliveries again.
	Gap bool `json:"-"`

	At         time.Time `json:"at"`
	DeliveryID string    `json:"deliveryId"`
	Status     string    `json:"status"`
	Reason     string    `json:"reason"`
	Attempts   int       `json:"attempts"`
	Kind       string    `json:"kind"`
	ChainID    uint64    `json:"chainId"`
	AgentID    string    `json:"agentId"`
}

// EventSelection selects the events of a stream. Empty fields select all.
type EventSelection struct {
	Agent    string   // CHAIN:AGENT
	Statuses []string // changes to one of these
	// After is Event.ID of the last event that was handled. Empty: begin now.
	After string
}

const (
	reconnectPause = 2 * time.Second
	longestSilence = time.Minute // Herald writes at least every 15 s
)

// Events calls handle for each change, in order, until ctx ends, handle returns an error, or Herald refuses the
// request. It returns that error. After an interruption it connects again and resumes, so that handle receives each
// change once.
func (c *Client) Events(ctx context.Context, s EventSelection, handle func(Event) error) error {
	q := url.Values{"status": s.Statuses}
	if s.Agent != "" {
		q.Set("agent", s.Agent)
	}
	last := s.After
	for {
		err := c.streamEvents(ctx, q, &last, handle)
		var refused *Error
		var failed *handleError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &failed):
			return failed.error
		case errors.As(err, &refused) && !refused.Temporary():
			return err
		}
		timer := time.NewTimer(reconnectPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// handleError is an error of the caller's function.
type handleError struct{ error }

// streamEvents reads one connection until it ends. It keeps the position in last, which also moves without events.
func (c *Client) streamEvents(ctx context.Context, q url.Values, last *string, handle func(Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(longestSilence, cancel)
	defer silence.Stop()
	if *last != "" {
		q.Set("lastEventId", *last)
	}
	res, err := c.send(ctx, http.MethodGet, "/v1/events?"+q.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := readAnswer(res)
		if err != nil {
			return err
		}
		return newError(res, raw)
	}
	var kind, data, id string
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		silence.Reset(longestSilence)
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			kind = value
		case "data":
			data = value
		case "id":
			id = value
		}
		if lines.Text() != "" {
			continue // the event is not complete
		}
		if kind != "" {
			e := Event{ID: id, Gap: kind == "gap"}
			if !e.Gap {
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					return fmt.Errorf("herald: read an event: %w", err)
				}
			}
			if err := handle(e); err != nil {
				return &handleError{err}
			}
		}
		if id != "" {
			*last = id
		}
		kind, data, id = "", "", ""
	}
	return lines.Err()
}
