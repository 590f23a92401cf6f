package api

import (
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

const (
	// jobsPerSecond bounds the jobs that are parsed for one token, because even refused jobs cost processor time.
	jobsPerSecond = 10_000
	maxPaced      = 256 // tokens with a limiter in memory
)

// jobPace is a rate limit per token.
type jobPace struct {
	limits *lru.Cache[string, *rate.Limiter]
}

func newJobPace() *jobPace {
	limits, _ := lru.New[string, *rate.Limiter](maxPaced) // only a size below 1 is an error
	return &jobPace{limits}
}

// limiter returns the limiter of a token.
func (p *jobPace) limiter(name string) *rate.Limiter {
	fresh := rate.NewLimiter(jobsPerSecond, jobsPerSecond)
	if known, found, _ := p.limits.PeekOrAdd(name, fresh); found {
		p.limits.Get(name) // marks it as recently used
		return known
	}
	return fresh
}
