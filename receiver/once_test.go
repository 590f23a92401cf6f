package receiver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

// TestConcurrentCallWaits checks that a second call for a delivery, during the first, waits for the result of the
// first. An aborted first call is no success.
func TestConcurrentCallWaits(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		end  func() error // the end of the first call
		want error
	}{
		"success": {func() error { return nil }, nil},
		"failure": {func() error { return failed }, failed},
		"abort":   {func() error { runtime.Goexit(); return nil }, errAborted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := &once{store: NewMemoryStore(1), running: map[string]*flight{}}
				release, calls := make(chan struct{}), 0
				go func() {
					_, _ = o.do(t.Context(), "a", func() error {
						calls++
						<-release
						return c.end()
					})
				}()
				synctest.Wait()
				answered, err := false, error(nil)
				go func() {
					var duplicate bool
					duplicate, err = o.do(t.Context(), "a", func() error { t.Error("the second ran"); return nil })
					if answered = true; !duplicate {
						t.Error("the second is no duplicate")
					}
				}()
				gone, leave := context.WithCancel(t.Context())
				var left error
				go func() { _, left = o.do(gone, "a", func() error { t.Error("the third ran"); return nil }) }()
				if _, err := o.do(t.Context(), "b", func() error { return nil }); err != nil {
					t.Errorf("another delivery: %v", err)
				}
				synctest.Wait()
				if answered || calls != 1 {
					t.Errorf("answered %t after %d calls, while the first runs", answered, calls)
				}
				leave()
				synctest.Wait()
				if !errors.Is(left, context.Canceled) {
					t.Errorf("a caller that left: %v", left)
				}
				close(release)
				synctest.Wait()
				if !answered || !errors.Is(err, c.want) || len(o.running) != 0 {
					t.Errorf("answered %t with %v, %d still run", answered, err, len(o.running))
				}
			})
		})
	}
}

// TestMemoryStoreIsBounded checks that the store evicts the oldest ids beyond its limit.
func TestMemoryStoreIsBounded(t *testing.T) {
	t.Parallel()
	s := NewMemoryStore(3)
	for i := range 10 {
		for range 2 { // a repeated id takes no place
			if err := s.Remember(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 10 {
		if known, _ := s.Processed(t.Context(), fmt.Sprint(i)); known != (i >= 7) {
			t.Errorf("%d: known %t", i, known)
		}
	}
	if len(s.known) != 3 || len(s.order) != 3 {
		t.Errorf("%d ids, %d in order", len(s.known), len(s.order))
	}
}
