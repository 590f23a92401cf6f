package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
)

// maxSamples bounds RuleEffect.Samples.
const maxSamples = 3

// PolicyTest contains the decisions of a policy about stored deliveries.
type PolicyTest struct {
	Delivered int          `json:"delivered"`
	Skipped   int          `json:"skipped"`
	NoMatch   int          `json:"noMatch"`  // of Delivered: no rule matched
	Unknown   int          `json:"unknown"`  // deliveries whose job was deleted or cannot be read
	Warnings  []string     `json:"warnings"` // about the policy, with paths
	Rules     []RuleEffect `json:"rules"`
}

// RuleEffect contains the deliveries about which a rule decides.
type RuleEffect struct {
	Rule    policy.Rule `json:"rule"`
	Count   int         `json:"count"`
	Samples []uuid.UUID `json:"samples"` // the newest, at most maxSamples
}

// TestPolicy applies the filters of a policy file to the newest deliveries of a selection, at most limit. It changes
// nothing.
func (o *Operator) TestPolicy(ctx context.Context, path string, s Selection, limit int) (out PolicyTest, err error) {
	f, err := s.parseFilter(time.Now())
	if err = cmp.Or(checkLimit(limit), err); err != nil {
		return out, err
	}
	f.Limit = limit
	p, warnings, err := LoadPolicy(path)
	if err != nil {
		return out, err
	}
	out.Warnings, out.Rules = append([]string{}, warnings...), make([]RuleEffect, len(p.Filters))
	for i, rule := range p.Filters {
		out.Rules[i] = RuleEffect{Rule: rule, Samples: []uuid.UUID{}}
	}
	levels := policy.Levels{Default: p}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Deliveries(ctx, f)
		for _, row := range rows {
			d, err := st.Delivery(ctx, row.ID)
			if err != nil {
				return err
			}
			var j job.Job
			if json.Unmarshal(d.Job, &j) != nil || j.AgentID == nil {
				out.Unknown++
				continue
			}
			out.add(d.ID, levels.Decide(policy.EventOf(j)))
		}
		return err
	})
	return out, err
}

func (t *PolicyTest) add(id uuid.UUID, d policy.Decision) {
	if d.Skip {
		t.Skipped++
	} else {
		t.Delivered++
	}
	if d.Rule == 0 {
		t.NoMatch++
		return
	}
	r := &t.Rules[d.Rule-1]
	if r.Count++; len(r.Samples) < maxSamples {
		r.Samples = append(r.Samples, id)
	}
}

// LoadPolicy reads a policy file.
func LoadPolicy(path string) (p policy.Policy, warnings []string, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return p, nil, NewMisuse("the policy cannot be read: %v", err)
	}
	if p, warnings, err = policy.Load(path, raw, os.ReadFile); err != nil {
		err = &MisuseError{Text: err.Error()}
	}
	return p, warnings, err
}
