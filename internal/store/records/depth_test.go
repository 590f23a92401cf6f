package records_test

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

func TestDepth(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 12)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), waiting(-time.Hour))
	record(t, s, claim(t, s, tasks[2]), delivered)
	record(t, s, claim(t, s, tasks[3]), ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true})
	claim(t, s, tasks[4])
	d, err := s.Depth(t.Context())
	if err != nil || d.ByStatus[outcome.Queued] != 7 || d.ByStatus[outcome.Waiting] != 2 || d.ByStatus[outcome.Held] != 1 || d.ByStatus[outcome.Running] != 1 || len(d.ByStatus) != 4 {
		t.Errorf("%+v, %v", d, err)
	}
	if d.Overdue < time.Hour || d.Overdue > time.Hour+time.Minute {
		t.Errorf("overdue %s", d.Overdue)
	}
}

func TestOverdueOfEach(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	acceptOne(t, s, feedback(1, 1))
	for status, sql := range map[outcome.Status]string{
		outcome.Waiting: `status = 'waiting', next_attempt_at = now() - interval '10 minutes'`,
		outcome.Queued:  `handed_at = now() - interval '10 minutes'`,
		outcome.Running: `status = 'running', claim_no = 1, lease_until = now() - interval '10 minutes'`,
		outcome.Held:    `status = 'held', accepted_at = now() - interval '10 minutes', handed_at = NULL`,
	} {
		t.Run(string(status), func(t *testing.T) {
			exec(t, s, `UPDATE herald.deliveries SET status = 'queued', next_attempt_at = NULL, lease_until = NULL, handed_at = now()`)
			exec(t, s, `UPDATE herald.deliveries SET `+sql)
			d, err := s.Depth(t.Context())
			if err != nil || d.ByStatus[status] != 1 {
				t.Errorf("%+v, %v", d, err)
			}
			if late := d.Overdue > 9*time.Minute && d.Overdue < 11*time.Minute; late != (status != outcome.Held) {
				t.Errorf("overdue %s", d.Overdue)
			}
		})
	}
}
