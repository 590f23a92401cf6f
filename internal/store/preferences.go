package store

import (
	"context"
	"encoding/json"
	"math"
	"time"
)

// PreferencesLife is how long preferences count after the agent said them last. An agent that is called says them with
// every answer, if it likes.
const PreferencesLife = 7 * 24 * time.Hour

// MaxPause is the longest pause that an agent may ask for.
const MaxPause = 24 * time.Hour

// MaxBatchSize is the most deliveries that an agent may want in one call.
const MaxBatchSize = 50

// Preferences are what an agent asks of Herald for itself. They only ever make that less: a zero field asks for nothing.
type Preferences struct {
	Kinds        []string  `json:"kinds,omitzero"`        // of deliveries that it wants; nil: all, empty: none
	BatchSize    int       `json:"batchSize,omitempty"`   // at most so many deliveries in a call, 1 to MaxBatchSize
	MaxPerSecond float64   `json:"maxPerSecond,omitzero"` // calls
	PauseUntil   time.Time `json:"pauseUntil,omitzero"`   // no calls before that

	SaidAt        time.Time `json:"saidAt,omitzero"`         // by the clock of the worker that heard it; zero: never
	NotUnderstood []string  `json:"notUnderstood,omitempty"` // members that it gave values which mean nothing
}

// parsePreferences reads what is stored leniently, as parsePolicy does: what is out of range, edited by hand, is as if it
// were not there.
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

// InForce are the preferences that count at a time: none when they are older than PreferencesLife or the operator
// ignores them, and no pause that is over.
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

// encodeJSON is what agents.preferences keeps, or nil: nothing was said. Times are UTC to the second, or to the millisecond
// of one width, so that record.sql can compare them as text.
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
		return nil // a year beyond 9999, which nobody's clock says
	}
	return stored
}

// ClearPreferences forgets what an agent asked for in its answers, until it asks again. ErrNotFound.
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
