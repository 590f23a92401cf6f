package records

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// AlertKind is the kind of an alert (alerts.kind).
type AlertKind string

// The kinds of alerts.
const (
	AgentFailing   AlertKind = "agent.failing"   // the agent's calls fail
	AgentRecovered AlertKind = "agent.recovered" // a call succeeded again
	AgentDisabled  AlertKind = "agent.disabled"  // an operator or Herald disabled the agent
	DeliveriesDead AlertKind = "deliveries.dead" // deliveries became dead
	DeliveriesHeld AlertKind = "deliveries.held" // deliveries were held
)

// News is one change to report in an alert: an agent began to fail, recovered or was disabled, or deliveries of an
// agent became dead or held since the last such alert.
type News struct {
	Kind         AlertKind
	Agent        erc8004.Agent
	At           time.Time      // when LookForNews found the change
	FailingSince *time.Time     // for the kinds agent.*: time of the first failed call
	State        string         // for AgentFailing: StateFailed or StateNeedsAuth
	ByHerald     bool           // for AgentDisabled: LookForNews disabled the agent; false: an operator did
	Count        int            // number of deliveries; Count, Reasons and Deliveries are for the kinds deliveries.*
	Reasons      map[string]int // number of deliveries by reason; "": no reason
	Deliveries   []uuid.UUID    // ids of at most maxNamedMishaps of the counted deliveries
}

// LookConfig configures LookForNews.
type LookConfig struct {
	FailingAfter time.Duration // time for which an agent's calls must all have failed before AgentFailing
	DisableAfter time.Duration // time for which all its calls must have failed before an agent is disabled; 0: never
	Pause        time.Duration // minimum time between two alerts of a kind about an agent's deliveries
	Keep         time.Duration // age at which sent and given-up alerts are deleted
	// Compose returns the payload to post for a change. LookForNews calls it within its transaction. If Compose is nil,
	// changes are marked as reported, but no alert is inserted.
	Compose func(News) (json.RawMessage, error)
	// Part bounds the failing, the disabled and the reported agents that one call reads. The default is 5,000.
	Part int
	// After is Looked.Last of the previous call. The zero value begins with the first agents.
	After erc8004.Agent
}

// Looked is the result of LookForNews.
type Looked struct {
	Disabled []erc8004.Agent // agents that it disabled
	Inserted int             // number of alerts that it inserted
	Last     erc8004.Agent   // the last agent of the part; zero: the next call begins with the first agents again
}

const (
	maxLookAgents   = 500      // agents with new problems that one LookForNews reports, and agents that it disables
	defaultLookPart = 5000     // LookConfig.Part
	maxLookMishaps  = 5000     // rows of herald.mishaps that one LookForNews reads
	maxNamedMishaps = 20       // ids of deliveries in an alert, and in a row of herald.mishaps
	heraldActor     = "herald" // Audit.Actor when LookForNews disables an agent
)

// LookForNews disables agents whose calls have all failed for cfg.DisableAfter, finds changes of agents and deliveries
// that no earlier call reported, and inserts an alert for each (News). It also deletes finished alerts older than
// cfg.Keep. All happens in one transaction, so that each change is reported once. A call reads a part of the agents
// (cfg.Part), and the next call the part after it (cfg.After), also after an error: a transaction may lock an agent for
// long.
func (s *Store) LookForNews(ctx context.Context, cfg LookConfig) (l Looked, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "look for alerts")
	defer end()
	if cfg.DisableAfter > 0 { // a wrong clock of Postgres must not disable each agent that fails
		if cfg.DisableAfter, err = retention.ExtendAge(ctx, s.db, cfg.DisableAfter); err != nil {
			return Looked{Last: cfg.After}, err
		}
	}
	part, err := s.findPart(ctx, cfg.After, cmp.Or(cfg.Part, defaultLookPart))
	if err != nil {
		return Looked{Last: cfg.After}, err
	}
	candidates, err := s.listAgentsToDisable(ctx, s.db.Conns, cfg.DisableAfter, part)
	if err != nil {
		return Looked{Last: part.Last}, err
	}
	err = pgx.BeginFunc(ctx, s.db.Conns, func(tx pgx.Tx) error {
		var news []News
		if l.Disabled, err = s.disableFailing(ctx, tx, candidates, cfg.DisableAfter, part); err != nil {
			return err
		}
		if news, err = noteAgents(ctx, tx, cfg.FailingAfter, part); err != nil {
			return err
		}
		for i := range news {
			news[i].ByHerald = news[i].Kind == AgentDisabled && slices.Contains(l.Disabled, news[i].Agent)
		}
		if l.Last = part.Last; max(len(news), len(l.Disabled)) >= maxLookAgents {
			l.Last = cfg.After // the part may have more news
		}
		ended, err := takeMishaps(ctx, tx, cfg.Pause)
		if err != nil {
			return err
		}
		if cfg.Compose != nil {
			if l.Inserted, err = insertAlerts(ctx, tx, append(news, ended...), cfg.Compose); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx,
			`DELETE FROM herald.alerts WHERE created_at < now() - $1::interval AND next_attempt_at IS NULL`, cfg.Keep)
		return err
	})
	if err != nil {
		return Looked{Last: part.Last}, err
	}
	return l, nil
}

// findPart returns the part of the agents that follows an agent and has at most most agents of each kind (look_part).
func (s *Store) findPart(ctx context.Context, after erc8004.Agent, most int) (ledger.AgentRange, error) {
	rows, _ := s.db.Conns.Query(ctx, statements.Text("look_part"), after.ChainID, after.Registry, cmp.Or(after.ID, "0"),
		most-1)
	last, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[erc8004.Agent])
	if errors.Is(err, pgx.ErrNoRows) { // the part has all remaining agents
		err = nil
	}
	return ledger.AgentRange{After: after, Last: last}, err
}

// listAgentsToDisable lists at most maxLookAgents enabled agents of a part whose calls have all failed for at least
// failingFor. If failingFor is 0, it lists none.
func (s *Store) listAgentsToDisable(ctx context.Context, q postgres.Querier, failingFor time.Duration,
	part ledger.AgentRange) ([]erc8004.Agent, error) {
	if failingFor <= 0 {
		return nil, nil
	}
	args := append([]any{failingFor, maxLookAgents}, part.Arguments()...)
	rows, _ := q.Query(ctx, statements.Text("agents_to_disable"), args...)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[erc8004.Agent])
}

// disableFailing locks the candidates, which listAgentsToDisable returned earlier, and calls listAgentsToDisable again.
// It disables the candidates that are still listed, inserts an audit row for each, and returns them.
func (s *Store) disableFailing(ctx context.Context, tx pgx.Tx, candidates []erc8004.Agent,
	failingFor time.Duration, part ledger.AgentRange) (disabled []erc8004.Agent, err error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	if err := s.ledger.LockAgents(ctx, tx, candidates); err != nil {
		return nil, err
	}
	still, err := s.listAgentsToDisable(ctx, tx, failingFor, part)
	if err != nil {
		return nil, err
	}
	for _, a := range still {
		if !slices.Contains(candidates, a) {
			continue // the agent is no candidate, so it is not locked; a later LookForNews may disable it
		}
		filter, _ := json.Marshal(map[string]any{"agent": a.String(), "registry": a.Registry,
			"wasEnabled": true}) // encoding strings cannot fail
		if err := setEnabled(ctx, tx, a, false); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO herald.audit (actor, action, filter, matched, state, finished_at, note)
			VALUES ($1, 'agent disable', $2, 1, 'done', now(), $3)`, heraldActor,
			storable.JSON(filter, storable.MaxSide),
			fmt.Sprintf("every call failed for %s or longer (HERALD_DISABLE_AFTER)", failingFor)); err != nil {
			return nil, err
		}
		disabled = append(disabled, a)
	}
	return disabled, nil
}

// noteAgents returns one News for each agent of a part that began to fail, was disabled or recovered. It stores these
// changes in herald.alerted_agents, so that later calls skip them. An enabled agent fails if its last calls, at least
// two, have failed, and the first of these failed at least failingAfter ago. noteAgents returns at most maxLookAgents
// failing and disabled agents, and all agents that recovered.
func noteAgents(ctx context.Context, tx pgx.Tx, failingAfter time.Duration, part ledger.AgentRange) ([]News, error) {
	now := time.Now()
	args := append([]any{failingAfter, maxLookAgents}, part.Arguments()...)
	rows, _ := tx.Query(ctx, statements.Text("note_agents"), args...)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n News, err error) {
		n.At = now
		var change string
		err = row.Scan(&change, &n.Agent.ChainID, &n.Agent.Registry, &n.Agent.ID, &n.FailingSince, &n.State)
		n.Kind = AlertKind("agent." + change)
		return n, err
	})
}

// takeMishaps reads and deletes at most maxLookMishaps rows of herald.mishaps, which count the deliveries that became
// dead or held. It leaves the rows of an agent whose last alert of the same kind is younger than pause. It returns one
// News per agent and kind, which sums up the rows of all reasons.
func takeMishaps(ctx context.Context, tx pgx.Tx, pause time.Duration) (news []News, err error) {
	now := time.Now()
	type subject struct {
		kind  AlertKind
		agent erc8004.Agent
	}
	at := map[subject]int{}
	var status, reason string
	var a erc8004.Agent
	var count int
	var ids []uuid.UUID
	rows, _ := tx.Query(ctx, statements.Text("take_mishaps"), pause, maxLookMishaps)
	_, err = pgx.ForEachRow(rows, []any{&status, &a.ChainID, &a.Registry, &a.ID, &reason, &count, &ids}, func() error {
		k := subject{AlertKind("deliveries." + status), a}
		i, known := at[k]
		if !known {
			i, at[k] = len(news), len(news)
			news = append(news, News{Kind: k.kind, Agent: a, At: now, Reasons: map[string]int{}})
		}
		n := &news[i]
		n.Count += count
		n.Reasons[reason] += count
		n.Deliveries = append(n.Deliveries, ids[:min(len(ids), maxNamedMishaps-len(n.Deliveries))]...)
		ids = nil
		return nil
	})
	return news, err
}

// insertAlerts inserts an alert for each News, with the payload that compose returns for it, and returns the number of
// alerts. It returns an error of compose.
func insertAlerts(ctx context.Context, tx pgx.Tx, news []News,
	compose func(News) (json.RawMessage, error)) (inserted int, err error) {
	b := &pgx.Batch{}
	for _, n := range news {
		payload, err := compose(n)
		if err != nil {
			return 0, fmt.Errorf("compose an alert of %s: %w", n.Kind, err)
		}
		b.Queue(`INSERT INTO herald.alerts (kind, chain_id, identity_registry, agent_id, payload)
			VALUES ($1, $2, $3, $4, $5)`, n.Kind, n.Agent.ChainID, n.Agent.Registry, n.Agent.ID, payload)
	}
	if b.Len() == 0 {
		return 0, nil
	}
	return b.Len(), tx.SendBatch(ctx, b).Close()
}

// Alert is an alert that was claimed for one attempt to post it.
type Alert struct {
	ID      uuid.UUID // the same in every attempt
	Kind    AlertKind
	Payload []byte
	Attempt int           // number of this attempt, from 1
	Age     time.Duration // time since the alert was inserted
}

// ClaimAlert claims the alert that has been due longest, so that the caller posts it. The alert is due again when the
// lease ends, unless EndAlert or PostponeAlert is called. ClaimAlert returns ErrNotFound if no alert is due.
func (s *Store) ClaimAlert(ctx context.Context, lease time.Duration) (a Alert, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "claim an alert")
	defer end()
	var payload string
	err = s.db.Conns.QueryRow(ctx, statements.Text("claim_alert"), lease).Scan(&a.ID, &a.Kind, &payload, &a.Attempt,
		&a.Age)
	a.Payload = []byte(payload)
	return a, postgres.NoRows(err, ledger.ErrNotFound)
}

// EndAlert records that the receiver accepted the alert a, so that it is not posted again.
func (s *Store) EndAlert(ctx context.Context, a Alert) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "record that alert %s was accepted", a.ID)
	defer end()
	_, err = s.db.Conns.Exec(ctx,
		`UPDATE herald.alerts SET sent_at = now(), next_attempt_at = NULL, error = NULL WHERE id = $1`, a.ID)
	return err
}

// PostponeAlert stores why an attempt to post the alert failed, and makes the alert due again after wait, or never if
// wait is nil. PostponeAlert changes nothing and returns nil if a later attempt was claimed or the alert was accepted.
func (s *Store) PostponeAlert(ctx context.Context, a Alert, wait *time.Duration, why string) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "record that alert %s was not accepted", a.ID)
	defer end()
	_, err = s.db.Conns.Exec(ctx, `UPDATE herald.alerts SET next_attempt_at = now() + $3::interval, error = $4
		WHERE id = $1 AND attempts = $2 AND sent_at IS NULL`, a.ID, a.Attempt, wait,
		storable.Text(why, storable.MaxError))
	return err
}
