package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // the driver, without C

	"github.com/agentherald/herald/receiver"
)

const schema = `
CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS feedback (
	delivery_id  TEXT PRIMARY KEY,
	registry     TEXT NOT NULL,
	agent        TEXT NOT NULL,
	client       TEXT NOT NULL,
	idx          INTEGER NOT NULL,
	at           INTEGER NOT NULL, -- seconds since 1970
	score        REAL, -- NULL: not within 0 and 100
	tag          TEXT NOT NULL,
	file         TEXT NOT NULL, -- JSON
	verification TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS feedback_at ON feedback (at);`

// feedback is the agent's table of feedback. It is also the receiver's Store, so that a repeated delivery is known
// after a restart: otherwise a repeat of feedback that was revoked in between would add it again.
type feedback struct{ db *sql.DB }

func openFeedback(ctx context.Context, file string) (*feedback, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file, err), db.Close())
	}
	return &feedback{db}, nil
}

func (f *feedback) close() error { return f.db.Close() }

// Processed implements receiver.Store.
func (f *feedback) Processed(ctx context.Context, deliveryID string) (known bool, err error) {
	err = f.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM deliveries WHERE id = ?)`, deliveryID).Scan(&known)
	return known, err
}

// Remember implements receiver.Store.
func (f *feedback) Remember(ctx context.Context, deliveryID string) error {
	_, err := f.db.ExecContext(ctx, `INSERT INTO deliveries VALUES (?) ON CONFLICT DO NOTHING`, deliveryID)
	return err
}

// addFeedback stores a feedback. A second call for the delivery changes nothing: the process may end before Remember.
func (f *feedback) addFeedback(ctx context.Context, r receiver.Feedback) error {
	at := r.Timestamp
	if at == 0 {
		at = time.Now().Unix()
	}
	_, err := f.db.ExecContext(ctx, `INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		r.DeliveryID, r.AgentRegistry, r.AgentID, r.ClientAddress, r.FeedbackIndex, at, r.Score, r.Tag1,
		string(r.FileContent), r.FileVerification)
	return err
}

// deleteFeedback deletes a feedback that is no longer valid. After a reorg another feedback may have its index, so the
// id of its delivery decides.
func (f *feedback) deleteFeedback(ctx context.Context, r receiver.Revocation) (err error) {
	if r.Reason == "reorg" {
		_, err = f.db.ExecContext(ctx, `DELETE FROM feedback WHERE delivery_id = ?`, r.Retracts)
	} else {
		_, err = f.db.ExecContext(ctx, `DELETE FROM feedback WHERE registry = ? AND agent = ? AND client = ? AND idx = ?`,
			r.AgentRegistry, r.AgentID, r.ClientAddress, r.FeedbackIndex)
	}
	return err
}

// dislike is one feedback in the answer. All texts are a stranger's.
type dislike struct {
	Score        float64 `json:"score"`
	Tag          string  `json:"tag"`
	File         string  `json:"file"` // JSON
	Verification string  `json:"verification"`
	Client       string  `json:"client"`
	At           string  `json:"at"`
}

// listDisliked returns up to 50 pieces of feedback with a score below 50 since a time, the worst first.
func (f *feedback) listDisliked(ctx context.Context, since time.Time) ([]dislike, error) {
	rows, err := f.db.QueryContext(ctx, `SELECT score, tag, substr(file, 1, 2000), verification, client, at FROM feedback
		WHERE at >= ? AND score < 50 ORDER BY score, at DESC LIMIT 50`, since.Unix())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	list := []dislike{}
	for rows.Next() {
		var d dislike
		var at int64
		if err := rows.Scan(&d.Score, &d.Tag, &d.File, &d.Verification, &d.Client, &at); err != nil {
			return nil, err
		}
		d.At = time.Unix(at, 0).UTC().Format(time.RFC3339)
		list = append(list, d)
	}
	return list, rows.Err()
}
