package alerts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// SenderRecords is the part of the operator's records that a Sender uses.
type SenderRecords interface {
	ClaimAlert(ctx context.Context, lease time.Duration) (records.Alert, error)
	EndAlert(ctx context.Context, a records.Alert) error
	PostponeAlert(ctx context.Context, a records.Alert, wait *time.Duration, why string) error
}

// SenderConfig configures a Sender.
type SenderConfig struct {
	Records  SenderRecords
	URL      secret.Secret    // receives the alerts; it may contain a token
	Secret   secret.Secret    // whsec_…: the key of the signatures
	Guard    *netguard.Guard  // for addresses that the operator configured
	Schedule outcome.Schedule // waits after failed attempts; the last wait is repeated
	Logger   *slog.Logger

	Random func() float64 // in [0, 1), default math/rand
}

const (
	sendInterval = 5 * time.Second // between two polls of the outbox
	postTimeout  = 10 * time.Second
	markTimeout  = 10 * time.Second
	// alertLease is longer than one post and its record. If a worker dies after a post, the alert is posted again.
	alertLease = time.Minute
	// giveUpAfter is the age at which an alert that no receiver accepted is given up: a weekend and a day.
	giveUpAfter   = 3 * 24 * time.Hour
	maxRetryAfter = time.Hour
	// maxAnswer is how many bytes of the receiver's answer are read, so that its connection can be reused.
	maxAnswer = 64 << 10
)

// Sender posts the due alerts of the outbox. Several senders may share one outbox.
type Sender struct {
	SenderConfig
	hook   *webhooks.Webhook
	client *http.Client
	wake   chan struct{}
}

// NewSender validates the configuration and sets the defaults.
func NewSender(cfg SenderConfig) (*Sender, error) {
	if cfg.Records == nil || cfg.Guard == nil || cfg.URL.IsZero() || cfg.Secret.IsZero() ||
		cfg.Schedule.Attempts() < 2 {
		return nil, errors.New("alerts: a sender needs records, a guard, a URL, a secret and a schedule")
	}
	hook, err := webhooks.NewWebhook(cfg.Secret.Reveal())
	if err != nil {
		return nil, errors.New("alerts: the secret is not base64") // the library's error may quote the secret
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	return &Sender{SenderConfig: cfg, hook: hook, wake: make(chan struct{}, 1),
		client: cfg.Guard.Client(netguard.Limits{Header: postTimeout, Total: postTimeout, IdlePerHost: 1}, 0)}, nil
}

// Wake makes the sender poll the outbox immediately. It does not block.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // a poll is requested already
	}
}

// Run posts alerts until the context ends. It finishes a post that has begun.
func (s *Sender) Run(ctx context.Context) {
	tick := time.Tick(sendInterval)
	defer s.client.CloseIdleConnections()
	for {
		if err := s.SendDue(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("the outbox of alerts cannot be read or written; it is tried again",
				logging.About(logging.Postgres), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		case <-s.wake:
		}
	}
}

// SendDue posts all due alerts, one after the other.
func (s *Sender) SendDue(ctx context.Context) error {
	for ctx.Err() == nil {
		a, err := s.Records.ClaimAlert(ctx, alertLease)
		if errors.Is(err, ledger.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.sendAlert(context.WithoutCancel(ctx), a); err != nil {
			return err
		}
	}
	return nil
}

// sendAlert makes one attempt and records its result. It must be called with a context that is never cancelled, because
// the result of a post has to be recorded.
func (s *Sender) sendAlert(ctx context.Context, a records.Alert) error {
	retryAfter, failure := s.postAlert(ctx, a)
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if failure == nil {
		s.Logger.Info("alert posted", "alert", a.ID, "kind", a.Kind, "attempt", a.Attempt)
		return s.Records.EndAlert(ctx, a)
	}
	attempt := min(a.Attempt, s.Schedule.Attempts()-1)
	wait, _ := s.Schedule.Next(attempt, outcome.Verdict{RetryAfter: retryAfter}, s.Random())
	next := &wait
	switch {
	case a.Age+wait > giveUpAfter:
		next = nil
		s.Logger.Warn("an alert is dropped: its receiver did not accept it",
			"alert", a.ID, "kind", a.Kind, "attempts", a.Attempt, "error", failure)
	case a.Attempt == 1:
		s.Logger.Warn("an alert was not accepted; it is posted again", "alert", a.ID, "kind", a.Kind, "again_in", wait,
			"error", failure)
	default:
		s.Logger.Info("an alert was not accepted; it is posted again",
			"alert", a.ID, "kind", a.Kind, "attempt", a.Attempt, "again_in", wait, "error", failure)
	}
	return s.Records.PostponeAlert(ctx, a, next, failure.Error())
}

// postAlert posts an alert once. The error's text does not contain the URL. retryAfter is the receiver's Retry-After.
func (s *Sender) postAlert(ctx context.Context, a records.Alert) (retryAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	now := time.Now()
	signature, err := s.hook.Sign(a.ID.String(), now, a.Payload)
	if err != nil {
		return 0, errors.New("it could not be signed")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL.Reveal(), bytes.NewReader(a.Payload))
	if err != nil {
		return 0, errors.New("HERALD_ALERT_URL cannot be read")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "herald")
	req.Header.Set(webhooks.HeaderWebhookID, a.ID.String())
	req.Header.Set(webhooks.HeaderWebhookTimestamp, fmt.Sprint(now.Unix()))
	req.Header.Set(webhooks.HeaderWebhookSignature, signature)
	answer, err := s.client.Do(req)
	if err != nil {
		return 0, netguard.Explain("the receiver", postTimeout, err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // the status is sufficient
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return 0, nil
	case code >= 300 && code < 400:
		return 0, fmt.Errorf("the receiver answered %d: redirects are not followed", code)
	}
	return netguard.RetryAfter(answer.Header, now, maxRetryAfter),
		fmt.Errorf("the receiver answered %d", answer.StatusCode)
}

// payload is the body of a post. docs/operator/alerts-and-traces.md, "Posts", documents it. Fields may be added.
type payload struct {
	Type      records.AlertKind `json:"type"`
	Timestamp time.Time         `json:"timestamp"` // of the discovery; header webhook-timestamp: of the attempt
	Data      data              `json:"data"`
}

// data names the agent and contains the fields of the alert's type. It contains no text of an agent or a client: the
// receiver can run `worker agent show` or `worker delivery show`.
type data struct {
	Agent            string `json:"agent"` // CHAIN:AGENT, as in commands
	ChainID          uint64 `json:"chainId"`
	IdentityRegistry string `json:"identityRegistry"`
	AgentID          string `json:"agentId"`

	State        string     `json:"state,omitempty"`        // agent.failing: failed or needs_auth
	FailingSince *time.Time `json:"failingSince,omitempty"` // the first failed call after the last successful one
	By           string     `json:"by,omitempty"`           // agent.disabled: herald or operator

	Count      int            `json:"count,omitempty"` // deliveries.…
	Reasons    map[string]int `json:"reasons,omitempty"`
	Deliveries []uuid.UUID    `json:"deliveries,omitempty"` // the first 20 of them
}

// composePayload returns the payload of an alert about n.
func composePayload(n records.News) (json.RawMessage, error) {
	d := data{Agent: erc8004.FormatAgent(n.Agent.ChainID, n.Agent.ID), ChainID: n.Agent.ChainID,
		IdentityRegistry: n.Agent.Registry, AgentID: n.Agent.ID, FailingSince: n.FailingSince, Count: n.Count,
		Reasons: n.Reasons, Deliveries: n.Deliveries}
	switch n.Kind {
	case records.AgentFailing:
		d.State = n.State
	case records.AgentDisabled:
		d.By = "operator"
		if n.ByHerald {
			d.By = "herald"
		}
	}
	return json.Marshal(payload{Type: n.Kind, Timestamp: n.At.UTC().Truncate(time.Second), Data: d})
}
