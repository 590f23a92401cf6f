package retention_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestRetentionPlans: on ten thousand rows, no statement of retention scans a whole table. The statement that deletes
// contents does not visit the deliveries whose contents it has deleted, also if the statistics count none of these.
func TestRetentionPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fill, err := os.ReadFile("../testdata/ten_thousand.sql")
	heraldtest.Must(t, err)
	exec(t, s, string(fill))
	// As in a restored dump. Of two indexes at the same cost, Postgres uses the one that was created last.
	exec(t, s, `DROP INDEX herald.history_seq; CREATE INDEX history_seq ON herald.history (seq)`)
	exec(t, s, `VACUUM ANALYZE herald.history, herald.work, herald.agents, herald.attempts`)
	for name, args := range map[string]string{
		"retain":           `'1 day', 500, 1000`,
		"retain_attempts":  `'1 day', 500`,
		"drop_agent_hours": `'10 days', 500`,
		"open_attempts":    `1000`,
	} {
		conn, err := s.Conns.Acquire(t.Context())
		heraldtest.Must(t, err)
		// The pool's sessions make generic plans. The rollback undoes the statement.
		answers, err := conn.Conn().PgConn().Exec(t.Context(), fmt.Sprintf(
			"BEGIN; PREPARE planned AS %s; EXPLAIN (ANALYZE) EXECUTE planned(%s); DEALLOCATE planned; ROLLBACK",
			strings.ReplaceAll(retention.Statements.Text(name), "WEEK", "herald.attempts_default"), args)).ReadAll()
		conn.Release()
		heraldtest.Must(t, err)
		var plan strings.Builder
		for _, row := range answers[2].Rows {
			plan.Write(row[0])
			plan.WriteByte('\n')
		}
		scans := regexp.MustCompile(`Seq Scan on (history|work|agents|attempts|hints)\w*`)
		if plan.Len() == 0 || scans.MatchString(plan.String()) || strings.Contains(plan.String(), "using history_seq") ||
			name == "open_attempts" && !strings.Contains(plan.String(), "Index Cond: (seq < ") {
			t.Errorf("%s:\n%s", name, plan.String())
		}
	}
}
