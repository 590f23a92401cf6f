package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/agentherald/herald/internal/operator"
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
