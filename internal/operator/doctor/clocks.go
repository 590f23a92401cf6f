package doctor

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// maxSkew is the difference between two clocks from which the doctor warns. From 10 s on, asynq takes running workers
// for stopped ones. From a minute on, agents refuse signatures.
const maxSkew = 5 * time.Second

// clock is the clock of a service. It is that much ahead of the clock of this machine.
type clock struct {
	of    string
	ahead time.Duration
}

// readClock stores the clock of a service for compareClocks. It ignores a service that gives no time. It also ignores a
// slow answer, because the time in between would count as a difference.
func (d *doctor) readClock(ctx context.Context, of string, read func(context.Context) (time.Time, error)) {
	began := time.Now()
	at, err := ask(ctx, read)
	if took := time.Since(began); err == nil && took < maxSkew/2 {
		d.clocks = append(d.clocks, clock{of, at.Sub(began.Add(took / 2)).Round(time.Second)})
	}
}

// compareClocks warns if the clocks of this machine, Postgres and Redis differ. If two of three agree, and the third
// one agrees with neither, it names that one.
func (d *doctor) compareClocks(context.Context) []Finding {
	all := append([]clock{{of: "this machine"}}, d.clocks...)
	slices.SortStableFunc(all, func(a, b clock) int { return cmp.Compare(a.ahead, b.ahead) })
	slow, middle, fast := all[0], all[len(all)/2], all[len(all)-1]
	fastAgrees, slowAgrees := fast.ahead-middle.ahead < maxSkew, middle.ahead-slow.ahead < maxSkew
	if fast.ahead-slow.ahead < maxSkew {
		return nil
	}
	const harm = "Correct it, and let all machines of Herald follow one time server: with different clocks, agents " +
		"refuse signed calls, nodes seem to be late, and workers seem to have stopped"
	switch {
	case len(all) == 3 && slowAgrees && !fastAgrees:
		return reportWarning("the clock of %s is wrong: it is %s ahead of those of %s and %s. %s",
			fast.of, fast.ahead-middle.ahead, slow.of, middle.of, harm)
	case len(all) == 3 && fastAgrees && !slowAgrees:
		return reportWarning("the clock of %s is wrong: it is %s behind those of %s and %s. %s",
			slow.of, middle.ahead-slow.ahead, middle.of, fast.of, harm)
	}
	return reportWarning("a clock is wrong: that of %s is %s ahead of that of %s. %s",
		fast.of, fast.ahead-slow.ahead, slow.of, harm)
}
