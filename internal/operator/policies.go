package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// maxSamples bounds RuleEffect.Samples.
const maxSamples = 3

// PolicyTest contains the decisions of a policy about stored deliveries.
type PolicyTest struct {
	Delivered int          `json:"delivered"`
	Skipped   int          `json:"skipped"`
	NoMatch   int          `json:"noMatch"`  // of Delivered: no rule matched
	Unknown   int          `json:"unknown"`  // deliveries or lines whose job was deleted or cannot be read
	Warnings  []string     `json:"warnings"` // about the policy, with paths
	Rules     []RuleEffect `json:"rules"`
}

// RuleEffect contains the deliveries about which a rule decides.
type RuleEffect struct {
	Rule    policy.Rule `json:"rule"`
	Count   int         `json:"count"`
	Samples []uuid.UUID `json:"samples"` // the newest, at most maxSamples
}

// TestPolicy applies the filters of a policy file to the newest deliveries of a selection, at most limit. If jobs is
// not empty, it applies them to the jobs in that file (JSON Lines) instead. It changes nothing.
func (o *Operator) TestPolicy(ctx context.Context, path, jobs string, s Selection,
	limit int) (out PolicyTest, err error) {
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
	if jobs != "" {
		err = o.testJobs(&out, levels, jobs)
		return out, err
	}
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
			decision, _ := levels.SkipJob(j)
			out.add(d.ID, decision)
		}
		return err
	})
	return out, err
}

// testJobs applies the filters to the jobs in a file. Lines that are no valid job count as PolicyTest.Unknown.
func (o *Operator) testJobs(out *PolicyTest, levels policy.Levels, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return NewMisuse("the jobs cannot be read: %v", err)
	}
	defer file.Close()
	limits := job.Limits{MaxTimeout: o.Settings.CallTimeout, Tools: o.Settings.Tools,
		Registries: o.Settings.ListedRegistries}
	for lines := job.NewLineReader(file, job.MaxBytes); ; {
		line, err := lines.Next()
		var j job.Job
		if err == nil {
			j, err = job.Parse(line, limits)
		}
		switch refusal := (*job.Refusal)(nil); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &refusal):
			out.Unknown++
		case err != nil:
			return fmt.Errorf("read %s: %w", path, err)
		default:
			decision, _ := levels.SkipJob(j)
			out.add(j.ID(), decision)
		}
	}
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
	raw, err := readPolicyFile(path)
	if err != nil {
		return p, nil, err
	}
	if p, warnings, err = policy.Load(path, raw, policy.ReadFile); err != nil {
		err = &MisuseError{Text: err.Error()}
	}
	return p, warnings, err
}

// AgentLevel is the policy of one level that applies to an agent. The levels of an agent are in the order in which
// Herald asks their filters.
type AgentLevel struct {
	Level  policy.Level  `json:"level"`
	Policy policy.Policy `json:"policy"`
	// for each filter: how many of the agent's newest maxCounted deliveries it ended
	Skipped []int `json:"skipped"`
}

// maxCounted bounds the deliveries that AgentLevel.Skipped counts.
const maxCounted = 1000

// parsePolicy parses settings of the form NAME=VALUE. A value that is no JSON is a string.
func parsePolicy(settings []string) (p policy.Policy, err error) {
	members := make([]string, len(settings))
	for i, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if !json.Valid([]byte(value)) {
			value = string(mustMarshal(value))
		}
		members[i] = string(mustMarshal(name)) + ":" + value
	}
	if p, _, err = policy.Parse([]byte("{"+strings.Join(members, ",")+"}"), policy.Operator, nil); err == nil &&
		len(p.Filters) > 0 {
		err = errors.New("filters can only be replaced with --file")
	}
	if err != nil {
		err = &MisuseError{Text: err.Error()}
	}
	return p, err
}

// PolicyEdit is a change of an agent's policy. An empty one changes nothing.
type PolicyEdit struct {
	Settings []string `arg:"" optional:"" help:"onUnknown=resend: a call with an unknown outcome is made again (default); onUnknown=hold: it is held until an operator replays it. order=strict: each client's deliveries keep their order (default); order=off: each goes as soon as it can. Other settings of a policy likewise, as in maxPerSecond=5."`
	File     string   `help:"Replace the operator's policy of the agent by the one in this file." placeholder:"FILE" xor:"change"`
	Remove   bool     `help:"Remove the operator's policy of the agent." xor:"change"`
	Own      bool     `help:"Replace or remove the agent's own policy instead, which only reduces what it gets."`
}

// EditPolicy sets settings, or replaces or removes a policy of an agent. It returns the policies that apply then.
func (o *Operator) EditPolicy(ctx context.Context, ref AgentRef, actor string, e PolicyEdit) (AgentChange, error) {
	level, replaces := policy.Operator, e.File != "" || e.Remove
	if e.Own {
		level = policy.Own
	}
	var document []byte
	var err error
	switch {
	case e.Own && !replaces || replaces && len(e.Settings) > 0:
		err = NewMisuse("set either settings, or --file FILE, or --remove; --own is for the latter two")
	case e.File != "":
		document, err = readPolicyFile(e.File)
	}
	switch {
	case err != nil:
		return AgentChange{}, err
	case replaces:
		return o.ReplacePolicy(ctx, ref, actor, level, e.File+": ", document)
	case len(e.Settings) > 0:
		return o.SetPolicy(ctx, ref, actor, e.Settings)
	}
	return o.ShowPolicy(ctx, ref)
}

func readPolicyFile(path string) ([]byte, error) {
	raw, err := policy.ReadFile(path)
	if err != nil {
		err = NewMisuse("the policy cannot be read: %v", err)
	}
	return raw, err
}

// ShowPolicy returns the policies that apply to an agent.
func (o *Operator) ShowPolicy(ctx context.Context, ref AgentRef) (AgentChange, error) {
	return o.editAgent(ctx, o.OpenStore, ref, true, func(e *agentEdit) error { return o.describePolicies(ctx, e) })
}

// SetPolicy changes settings in the operator's policy of an agent, as in onUnknown=hold.
func (o *Operator) SetPolicy(ctx context.Context, ref AgentRef, actor string, settings []string) (AgentChange, error) {
	p, err := parsePolicy(settings)
	if err != nil {
		return AgentChange{}, err
	}
	return o.changePolicy(ctx, ref, actor, policy.Operator,
		func(was policy.Policy) policy.Policy { return was.Override(p) },
		func(st *Session, g erc8004.Agent) error { return st.SetPolicy(ctx, g, p) })
}

// ReplacePolicy replaces the operator's policy of an agent by a document, or with the level policy.Own the agent's own
// policy. nil removes it. Such a policy cannot name a file of clients. An error in the document begins with its source.
func (o *Operator) ReplacePolicy(ctx context.Context, ref AgentRef, actor string, level policy.Level, source string,
	document []byte) (out AgentChange, err error) {
	var p policy.Policy
	if document != nil {
		var refusal *job.Refusal
		if p, _, err = policy.Parse(document, level, nil); errors.As(err, &refusal) {
			return out, &MisuseError{Field: refusal.Path, Text: source + err.Error()}
		}
	}
	return o.changePolicy(ctx, ref, actor, level, func(policy.Policy) policy.Policy { return p },
		func(st *Session, g erc8004.Agent) error { return st.ReplacePolicy(ctx, g, level, p) })
}

// changePolicy changes the policy of one level of an agent: edit returns the new policy, and save stores it. It returns
// the policies that apply to the agent then.
func (o *Operator) changePolicy(ctx context.Context, ref AgentRef, actor string, level policy.Level,
	edit func(was policy.Policy) policy.Policy, save func(*Session, erc8004.Agent) error) (AgentChange, error) {
	return o.editAgent(ctx, o.OpenStore, ref, false, func(e *agentEdit) error {
		changed := &e.row.Policy
		if level == policy.Own {
			changed = &e.row.OwnPolicy
		}
		was := *changed
		*changed = edit(was)
		err := e.applyEdit(ctx, actor, "agent policy", map[string]any{"level": level, "policy": *changed, "was": was},
			func() (int64, error) { return countOne(save(e.Session, e.agent)) })
		return errors.Join(err, o.describePolicies(ctx, e))
	})
}

// describePolicies describes the policies that apply to the agent with the row of e.
func (o *Operator) describePolicies(ctx context.Context, e *agentEdit) error {
	l, _, readErr := o.readLevels(e.agent, e.row)
	if readErr != nil {
		e.Problem = readErr.Error()
	}
	e.Policy = new(l.Settings())
	e.Policy.OnUnknown = cmp.Or(e.Policy.OnUnknown, policy.OnUnknownResend)
	e.Policy.Order = cmp.Or(e.Policy.Order,
		map[bool]string{true: policy.OrderStrict, false: policy.OrderOff}[o.Settings.StrictOrder])
	counted, err := e.Deliveries(ctx, records.Filter{ChainID: &e.agent.ChainID, AgentID: e.agent.ID,
		Registry: e.agent.Registry, Limit: maxCounted})
	for _, level := range []AgentLevel{{Level: policy.Operator, Policy: l.Operator},
		{Level: policy.Default, Policy: l.Default}, {Level: policy.Own, Policy: l.Own}} {
		level.Skipped = make([]int, len(level.Policy.Filters))
		for i := range level.Skipped {
			why := l.DescribeRule(policy.Decision{Level: level.Level, Rule: i + 1})
			for _, d := range counted {
				if d.Reason == outcome.Filtered && d.Error == why {
					level.Skipped[i]++
				}
			}
		}
		if level.Policy.String() != "{}" {
			e.Levels = append(e.Levels, level)
		}
	}
	return err
}

// readLevels returns the policies that apply to the agent with this row. The default policy is that of this process'
// HERALD_POLICY_FILE. listed is the agent's entry in the servers file, which overrides the operator's policy, or nil.
func (o *Operator) readLevels(g erc8004.Agent,
	row records.AgentRow) (l policy.Levels, listed *servers.Server, err error) {
	l.Operator, l.Own = row.Policy, row.OwnPolicy
	if listed, err = o.ListedServer(g); listed != nil {
		l.Operator = l.Operator.Override(listed.Policy)
	}
	if err == nil && o.Settings.PolicyFile != "" {
		l.Default, _, err = LoadPolicy(o.Settings.PolicyFile)
	}
	return l, listed, err
}

// JudgeAgent returns the failure of each delivery to the agent with this row, or nil: the row, the servers file or a
// policy disables the agent, or a filter skips all its events (policy.Levels.SkipJob).
func (o *Operator) JudgeAgent(g erc8004.Agent, row records.AgentRow) (failure, err error) {
	l, listed, err := o.readLevels(g, row)
	if err != nil {
		return nil, err
	}
	id, _ := new(big.Int).SetString(g.ID, 10)
	_, why := l.SkipJob(job.Job{ChainID: g.ChainID, AgentID: id})
	return outcome.Agent{Filter: why, FileDisables: listed.Disables(), Disabled: l.Settings().Disables(),
		RowDisables: !row.Enabled}.Judge(), nil
}

// DescribePolicy returns the settings that `worker agent policy` can set, in its form.
func DescribePolicy(p policy.Policy) string {
	return "onUnknown=" + cmp.Or(p.OnUnknown, policy.OnUnknownResend) + " order=" + cmp.Or(p.Order, policy.OrderStrict)
}
