package ratelimit

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// BenchmarkPass measures Acquire and Release of a call that takes no time.
func BenchmarkPass(b *testing.B) {
	for name, rdb := range map[string]func() redis.UniversalClient{
		"local": func() redis.UniversalClient { return nil },
		"redis": func() redis.UniversalClient { return client(b, heraldtest.RealRedis(b)) },
	} {
		b.Run(name, func(b *testing.B) {
			for _, parallel := range []int{1, 8} { // times GOMAXPROCS
				b.Run(fmt.Sprint(parallel), func(b *testing.B) {
					l := newLimits(b, rdb(), func(c *Config) { c.Rate, c.Inflight = 1e6, 64 })
					b.ReportAllocs()
					b.SetParallelism(parallel)
					b.RunParallel(func(pb *testing.PB) {
						for i := 0; pb.Next(); i++ {
							origin := "https://" + strconv.Itoa(i%64) + ".example"
							p, err := l.Acquire(b.Context(), origin, origin, strconv.Itoa(i))
							if err != nil {
								b.Error(err)
								return
							}
							p.Release(b.Context(), OK)
						}
					})
				})
			}
		})
	}
}
