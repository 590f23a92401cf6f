package records_test

import (
	"regexp"
	"testing"

	"github.com/agentherald/herald/internal/store/records"
)

// TestPlans: no statement scans a whole table.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 1000) n`)
	exec(t, s, `INSERT INTO herald.mishaps (chain_id, identity_registry, agent_id, status, reason, deliveries)
		SELECT 8453, '0xaa', n, 'dead', 'timeout', '{}' FROM generate_series(1, 1000) n`)
	exec(t, s, `INSERT INTO herald.alerts (kind, chain_id, identity_registry, agent_id, payload, next_attempt_at)
		SELECT 'deliveries.dead', 8453, '0xaa', n % 1000, '{}', CASE WHEN n % 100 = 0 THEN now() END FROM generate_series(1, 2000) n`)
	exec(t, s, `UPDATE herald.agents SET failing_since = CASE WHEN agent_id < 20 THEN now() - interval '1 hour' END, enabled = agent_id > 10`)
	exec(t, s, `VACUUM ANALYZE herald.agents, herald.mishaps, herald.alerts`)
	const agent = `8453, '0xaa', 7`
	for name, args := range map[string]string{
		"observe":           agent + `, 'connected', NULL, NULL, NULL, NULL, NULL`,
		"set_token":         agent + `, 'https://a.example', 'oauth_client_credentials', 'Authorization', 'x', 1, NULL, 'https://i.example', '/mcp'`,
		"lease_renewal":     agent + `, 'https://a.example', '30 s', NULL`,
		"save_renewal":      agent + `, 'https://a.example', 1, now(), 'x', 1, NULL, 'x', 1`,
		"agents_to_disable": `'5 days', 500`,
		"note_agents":       `'1 min', 500`,
		"take_mishaps":      `'5 min', 5000`,
		"claim_alert":       `'1 min'`,
	} {
		plan := explain(t, s, records.Statements.Text(name), args)
		if scan := regexp.MustCompile(`Seq Scan on (agents|alerts|mishaps)\w*`).FindString(plan); scan != "" {
			t.Errorf("%s: %s\n%s", name, scan, plan)
		}
	}
}
