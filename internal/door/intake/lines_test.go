package intake

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLinesThatHaveArrived: without a wait, a group has the lines that have arrived, and a slow line does not delay
// them. Each line has its position, and a line that is too long is answered without being submitted.
func TestLinesThatHaveArrived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		lines := ReadLines(t.Context(), []Source{{"a", strings.NewReader("1\n \t\r\n" + strings.Repeat("x", 1<<20) + "\n")}, {"b", r}}, func(int64) {})
		_, _ = io.WriteString(w, "2\n")
		synctest.Wait()
		group, end := CollectLines(t.Context(), lines, 10, 0)
		if len(group) != 3 || end != nil || group[1].Position() != "a line 3" || group[2].Position() != "b line 1" {
			t.Fatalf("%+v, %+v", group, end)
		}
		submitted := 0
		answers, err := SubmitLines(group, func(bodies [][]byte) ([]Answer, error) {
			submitted = len(bodies)
			return []Answer{{Key: "1"}, {Key: "2"}}, nil
		})
		if err != nil || submitted != 2 || answers[0].Key != "1" || answers[1].Verdict != Refused || answers[2].Key != "2" {
			t.Errorf("%+v, %v", answers, err)
		}
		_ = w.Close()
		_, end = CollectLines(t.Context(), lines, 10, 0)
		heraldtest.Equal(t, "the end", errors.Is(end.End, io.EOF), true)

		stopped, stop := context.WithCancelCause(t.Context())
		stop(io.ErrClosedPipe)
		_, end = CollectLines(stopped, make(chan Line), 10, 0)
		heraldtest.Equal(t, "stopped", errors.Is(end.End, io.ErrClosedPipe), true)
	})
}
