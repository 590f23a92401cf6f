package effort

// rules are the size and the refill rate of the token bucket in which each agent has its worker time. Times are in
// microseconds.
type rules struct {
	size   float64 // capacity of a bucket, µs
	refill float64 // µs of worker time per elapsed µs
}

func newRules(sizeMicros float64) rules { return rules{size: sizeMicros, refill: sizeMicros / 60e6} }

// bucket is the token bucket of one agent. used is the worker time that the agent has used for each kind of work, minus
// the refills since then.
type bucket struct {
	used [kindCount]float64 // µs for each kind of work
	at   int64              // µs: the time at which used was computed
}

func sumKinds(parts [kindCount]float64) (s float64) {
	for _, p := range parts {
		s += p
	}
	return s
}

// sumUsed returns the used worker time of all kinds, in µs.
func (b *bucket) sumUsed() float64 { return sumKinds(b.used) }

// usedAtMost returns the used worker time in µs. It counts at most fileLimit µs of the time that was used to fetch
// files. Clients choose the files, so the time above fileLimit must not delay the agent's other deliveries.
func (b *bucket) usedAtMost(fileLimit float64) float64 {
	return b.sumUsed() - max(b.used[Fetches]+b.used[ResponseFetches]-fileLimit, 0)
}

// addRefill refills the bucket for the time from b.at to now (µs). A refill reduces the used time of all kinds in
// proportion. If the clock was set back, addRefill refills nothing.
func (b *bucket) addRefill(r rules, now int64) {
	back, used := float64(max(now-b.at, 0))*r.refill, b.sumUsed()
	b.at = now
	if back <= 0 {
		return
	}
	if back >= used {
		b.used = [kindCount]float64{}
		return
	}
	keep := 1 - back/used
	for i := range b.used {
		b.used[i] *= keep
	}
}

// chargeSpent refills the bucket up to now (µs), and then adds spent, the µs spent on each kind of work, to the used
// worker time, even if the sum exceeds the bucket's size.
func (b *bucket) chargeSpent(r rules, now int64, spent [kindCount]float64) {
	b.addRefill(r, now)
	for i := range b.used {
		b.used[i] += spent[i]
	}
}
