package api

import (
	"context"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

const (
	// jobsPerSecond bounds the jobs of one token that are parsed, which costs processor time also where they are refused.
	jobsPerSecond = 10_000
	maxPaced      = 256 // tokens
)

// jobPace is a rate limit for each token.
type jobPace struct {
	limits *lru.Cache[string, *rate.Limiter]
}

func newJobPace() *jobPace {
	limits, _ := lru.New[string, *rate.Limiter](maxPaced) // only a size below 1 is an error
	return &jobPace{limits}
}

func (p *jobPace) limiter(name string) *rate.Limiter {
	fresh := rate.NewLimiter(jobsPerSecond, jobsPerSecond)
	if known, found, _ := p.limits.PeekOrAdd(name, fresh); found {
		p.limits.Get(name) // it was used last
		return known
	}
	return fresh
}

func (p *jobPace) allow(name string) bool { return p.limiter(name).Allow() }

// wait waits until a token may hand in n jobs more.
func (p *jobPace) wait(ctx context.Context, name string, n int) error {
	return p.limiter(name).WaitN(ctx, n)
}
