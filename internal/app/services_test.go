package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestServicesStopInReverse checks that services stop in reverse order. If one fails to start, those after it are
// neither started nor stopped.
func TestServicesStopInReverse(t *testing.T) {
	t.Parallel()
	var said []string
	errStart := errors.New("no")
	named := func(name string, err error) service {
		return service{name,
			func(context.Context) error { said = append(said, "start "+name); return err },
			func() { said = append(said, "stop "+name) }}
	}
	running := make(chan bool, 1)
	background := newLoop("loop", func(ctx context.Context) {
		running <- true
		<-ctx.Done()
		said = append(said, "end loop")
	})

	ctx, cancel := context.WithCancel(t.Context())
	stopAll, err := startAll(ctx, []service{named("a", nil), background, named("b", errStart), named("c", nil)}, slog.New(slog.DiscardHandler))
	heraldtest.Fails(t, "the start", err, errStart)
	<-running
	cancel() // the context limits only the start
	stopAll()
	heraldtest.Equal(t, "the order", said, []string{"start a", "start b", "end loop", "stop a"})
}
