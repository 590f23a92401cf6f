package maintenance

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// failingData is a ledger and old data. Its first call of Expire ends two deliveries. If expires is set, the commit of
// the second call fails. Retain commits a change of three deliveries, and then fails.
type failingData struct {
	RetentionLedger
	OldData
	expires error
	calls   int // of Expire
}

func (d *failingData) Expire(context.Context, time.Duration, int) (int, error) {
	if d.calls++; d.calls == 1 {
		return 2, nil
	} else if d.expires != nil {
		return 2, d.expires
	}
	return 0, nil
}

func (d *failingData) EnsurePartitions(context.Context, int) (int, error)              { return 0, nil }
func (d *failingData) DropEvents(context.Context, int) (int, error)                    { return 0, nil }
func (d *failingData) DropAgentHours(context.Context, time.Duration, int) (int, error) { return 0, nil }
func (d *failingData) DropPartitions(context.Context, time.Duration) (n int, err error) {
	return 0, nil
}
func (d *failingData) Retain(context.Context, time.Duration, int) (rows int, err error) {
	return 3, errors.New("the second statement failed")
}

// TestRetentionCountsCommits checks that a failed round counts only committed changes.
func TestRetentionCountsCommits(t *testing.T) {
	t.Parallel()
	for logged, data := range map[string]*failingData{
		"old deliveries keep id, key and status only\" deliveries=3": {},
		"deliveries are dead (expired)":                              {expires: errors.New("the commit failed")},
	} {
		log, counted := &heraldtest.Log{}, 0
		r, err := NewRetention(RetentionConfig{Ledger: data, OldData: data, KeepFinal: 60 * 24 * time.Hour,
			Logger: log.Logger(slog.LevelInfo), CountDead: func(_ outcome.Reason, n int) { counted += n }})
		heraldtest.Must(t, err)
		heraldtest.Fails(t, "the round", r.Apply(t.Context()))
		heraldtest.Contains(t, "the log", log.String(), logged)
		heraldtest.Equal(t, "counted deaths", counted, 2)
	}
}
