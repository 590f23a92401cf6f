package store

import (
	"context"
	"encoding/json"
	"math"
	"time"
)

// PreferencesLife is how long preferences are in force after the agent returned them. An agent can return them with
// every answer.
const PreferencesLife = 7 * 24 * time.Hour

// MaxPause is the longest pause that an agent may request.
const MaxPause = 24 * time.Hour

// MaxBatchSize is the largest number of deliveries that an agent may request per call.
const MaxBatchSize = 50

// Preferences are limits that an agent requests for the calls it gets. They can only reduce them; a zero field requests
// nothing.
type Preferences struct {
	Kinds        []string  `json:"kinds,omitzero"`        // kinds of deliveries that it accepts; nil: all, empty: none
	BatchSize    int       `json:"batchSize,omitempty"`   // maximum number of deliveries per call, 1 to MaxBatchSize
	MaxPerSecond float64   `json:"maxPerSecond,omitzero"` // maximum number of calls per second
	PauseUntil   time.Time `json:"pauseUntil,omitzero"`   // no calls before this time

	SaidAt        time.Time `json:"saidAt,omitzero"`         // when the worker got them, by its clock; zero: never
	NotUnderstood []string  `json:"notUnderstood,omitempty"` // members with invalid values
}

// parsePreferences parses stored preferences. It ignores values out of range, which may have been edited by hand.
func parsePreferences(raw []byte) (p Preferences) {
	if len(raw) == 0 || json.Unmarshal(raw, &p) != nil {
		return Preferences{}
	}
	if p.BatchSize < 0 || p.BatchSize > MaxBatchSize {
		p.BatchSize = 0
	}
	if !(p.MaxPerSecond > 0) || math.IsInf(p.MaxPerSecond, 0) {
		p.MaxPerSecond = 0
	}
	return p
}

// InForce returns the preferences that are in force at a time. The result is empty if they are older than
// PreferencesLife, or if the operator ignores them. A pause that has ended is removed, and a longer pause is cut to
// MaxPause.
func (p Preferences) InForce(policy Policy, now time.Time) Preferences {
	if policy.Preferences == PreferencesIgnore || now.Sub(p.SaidAt) > PreferencesLife {
		return Preferences{}
	}
	if !p.PauseUntil.After(now) {
		p.PauseUntil = time.Time{}
	}
	if latest := p.SaidAt.Add(MaxPause); p.PauseUntil.After(latest) {
		p.PauseUntil = latest
	}
	return p
}

// encodeJSON returns the value for agents.preferences, or nil if p is nil. Times are UTC, PauseUntil in seconds and
// SaidAt in milliseconds with a fixed width, so that record.sql can compare SaidAt as text.
func (p *Preferences) encodeJSON() []byte {
	if p == nil {
		return nil
	}
	out := *p
	out.PauseUntil = out.PauseUntil.UTC().Truncate(time.Second)
	stored, err := json.Marshal(struct {
		Preferences
		SaidAt string `json:"saidAt"`
	}{out, out.SaidAt.UTC().Format("2006-01-02T15:04:05.000Z")})
	if err != nil {
		return nil // only for a year beyond 9999
	}
	return stored
}

// ClearPreferences deletes an agent's preferences, until it returns some again. It returns ErrNotFound if there is no
// such agent.
func (s *Store) ClearPreferences(ctx context.Context, a Agent) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "clear the preferences of agent %d:%s", a.ChainID, a.ID)
	tag, err := s.pool.Exec(ctx, `UPDATE herald.agents SET preferences = NULL, line_held_until = NULL, updated_at = now()
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	return err
}
