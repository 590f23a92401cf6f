package api

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// drip is a body that sends a byte every ten seconds.
type drip struct {
	text     string
	deadline *time.Time
}

func (d *drip) Read(p []byte) (int, error) {
	due := time.Now().Add(10 * time.Second)
	if due.After(*d.deadline) {
		<-time.After(time.Until(*d.deadline))
		return 0, context.DeadlineExceeded
	}
	<-time.After(10 * time.Second)
	if d.text == "" {
		return 0, io.EOF
	}
	p[0], d.text = d.text[0], d.text[1:]
	return 1, nil
}

// deadlines records the read deadline of a request.
type deadlines struct {
	http.ResponseWriter
	at time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.at = at; return nil }

// TestSlowLine: a line that arrives byte by byte is cut off after lineTimeout. Lines that arrive in time are read,
// however long the stream lasts.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"aaaa\nbbbb\ncccc\n": "aaaa\nbbbb\ncccc\n", "aaaa\nbbbbbbbbbbbbbbbb\n": "aaaa\nbbbbbb"} {
		synctest.Test(t, func(t *testing.T) {
			w := &deadlines{}
			body := &timedBody{ctx: t.Context(), body: &drip{text, &w.at}, control: http.NewResponseController(w)}
			got, err := io.ReadAll(body)
			if string(got) != want || (err == nil) != (text == want) {
				t.Errorf("%q: read %q, %v", text, got, err)
			}
		})
	}
}
