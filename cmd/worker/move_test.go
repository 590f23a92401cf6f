package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// What could not be moved is listed as it is found, with the reason, cleaned.
func TestMoveListsFailures(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	odd := operator.LeftDelivery{ID: uuid.New(), Why: "its job is gone\x1b[2J"}
	err := moveFlags{}.runMove(&command{ctx: t.Context(), out: &b, err: io.Discard}, func(_ context.Context, r operator.MoveRequest) (*operator.MoveReport, error) {
		r.Progress(operator.MoveProgress{Done: 4, Total: 4, Left: 1, LeftNow: []operator.LeftDelivery{odd}})
		return &operator.MoveReport{Audit: 1, Matched: 4, Moved: 3, Done: "queued anew"}, nil
	}, false, 50)
	if want := fmt.Sprintf("left %s  its job is gone·[2J\n3 of 4 queued anew (audit 1)\n", odd.ID); err != nil || b.String() != want {
		t.Errorf("%v, %q", err, b.String())
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var out strings.Builder
	p := &progress{w: &out, now: func() time.Time { return now }, began: now.Add(-2 * time.Second)}
	p.showProgress(100, 200, 3)
	p.showProgress(110, 200, 3) // too soon after the previous line
	want := "\r\x1b[K[" + strings.Repeat("=", 15) + strings.Repeat(" ", 15) + "] 100 of 200, 50/s, 3 left as they are"
	heraldtest.Equal(t, "out.String()", out.String(), want)
	p.clear()
	p.clear()
	heraldtest.Equal(t, "out.String()", out.String(), want+"\r\x1b[K")
	file, err := os.CreateTemp(t.TempDir(), "")
	heraldtest.Must(t, err)
	defer file.Close()
	if p := newProgress(file); p.w != nil {
		t.Error("a file is no terminal")
	}
}
