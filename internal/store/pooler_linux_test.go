package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// BenchmarkPooler measures claim and record of deliveries of 64 agents by 16 concurrent callers, in direct sessions and
// through a pooler. The last case needs PgBouncer 1.21 or newer.
func BenchmarkPooler(b *testing.B) {
	url := heraldtest.Postgres(b, postgres.Migrate)
	direct := openStore(b, url)
	p := heraldtest.StartPooler(b, url)
	open := func(url string) *Store {
		s, err := Open(postgres.Config{URL: secret.New(url), LeaderURL: secret.New(direct.Conns.Config().ConnString()), MaxConns: 18})
		heraldtest.Must(b, err)
		b.Cleanup(s.Close)
		return s
	}
	if err := open(p.URL).CheckPooler(b.Context()); err != nil { // it names the missing settings
		_, commands, _ := strings.Cut(err.Error(), "console: ")
		execScript(b, direct, commands)
		p.Kill()
		p.Start()
	}
	prepared := open(p.URL + "&default_query_exec_mode=cache_statement")
	cases := []struct {
		name  string
		store *Store
	}{{"direct", direct}, {"pooler", open(p.URL)}, {"pooler, prepared statements", prepared}}
	if err := prepared.CheckPooler(b.Context()); err != nil {
		b.Log(err)
		cases = cases[:2]
	}
	for turn := range 3 {
		for _, c := range cases {
			b.Run(fmt.Sprintf("%s, turn %d", c.name, turn), func(b *testing.B) { deliverAll(b, c.store, 16, true) })
		}
	}
}
