package effort

// rules are the numbers of the state machine, in microseconds as in Redis.
type rules struct {
	size   float64 // of a bucket
	refill float64 // µs of effort in a µs
}

func newRules(sizeMicros float64) rules { return rules{size: sizeMicros, refill: sizeMicros / 60e6} }

// bucket is what an agent has used and has not been given back yet, by what it went for. charge.lua does the same.
type bucket struct {
	parts [whats]float64 // µs
	at    int64          // µs: when it was so much
}

func sumParts(parts [whats]float64) (s float64) {
	for _, p := range parts {
		s += p
	}
	return s
}

func (b *bucket) sumUsed() float64 { return sumParts(b.parts) }

// usedAtMost is what was used when files count for no more than their part: strangers choose them, and what they take
// beyond it must not silence the agent.
func (b *bucket) usedAtMost(files float64) float64 {
	return b.sumUsed() - max(b.parts[Fetches]-files, 0)
}

// addRefill gives back what the time since then is worth, to each part its share. A clock that was set back gives nothing.
func (b *bucket) addRefill(r rules, now int64) {
	back, used := float64(max(now-b.at, 0))*r.refill, b.sumUsed()
	b.at = now
	if back <= 0 {
		return
	}
	if back >= used {
		b.parts = [whats]float64{}
		return
	}
	keep := 1 - back/used
	for i := range b.parts {
		b.parts[i] *= keep
	}
}

// chargeSpent takes what was spent out of the bucket, also where less is left.
func (b *bucket) chargeSpent(r rules, now int64, spent [whats]float64) {
	b.addRefill(r, now)
	for i := range b.parts {
		b.parts[i] += spent[i]
	}
}
