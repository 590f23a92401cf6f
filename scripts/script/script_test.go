package script

import (
	"errors"
	"io"
	"testing"
)

// TestClose checks that no error is lost when a deferred Close also fails, and that other panics are no errors.
func TestClose(t *testing.T) {
	t.Parallel()
	closing := errors.New("closing")
	ended := false
	err := Try(func() {
		defer Close(func() error { ended = true; return closing })
		if Must(1, nil) != 1 {
			t.Error("Must changed the value")
		}
		Check(io.ErrUnexpectedEOF)
		t.Error("Check returned")
	})
	if !ended || !errors.Is(err, closing) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ended %v with %v", ended, err)
	}
	if err := Try(func() { defer Close(func() error { return closing }) }); !errors.Is(err, closing) {
		t.Errorf("got %v from Close alone", err)
	}
	if err := Try(func() { defer Close(func() error { return nil }) }); err != nil {
		t.Errorf("got %v without an error", err)
	}
	defer func() {
		if got := recover(); got != "bug" {
			t.Errorf("recovered %v", got)
		}
	}()
	_ = Try(func() { panic("bug") })
}
