package pages

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
)

// policyPart is the part of an agent's page about its policies (templates/policy.html).
type policyPart struct {
	OnUnknown string // the setting in force
	Rows      []policyRow
	Document  string // the text in the form: the operator's policy of the agent
	Problem   string // why the text was refused, or the policies may be incomplete
}

// policyRow is one filter of a policy, or the settings of a policy.
type policyRow struct {
	Level   policy.Level
	Rule    int // number of the filter; 0: the settings
	Skipped int
	Content string // JSON
}

func (p *Pages) showPolicies(r *request, row records.AgentRow) (part policyPart, err error) {
	all, err := p.Operator.ShowPolicy(r.Context(), r.agentRef())
	if err != nil {
		return part, err
	}
	part.OnUnknown, part.Problem = all.Policy.OnUnknown, all.Problem
	for _, l := range all.Levels {
		settings := l.Policy
		if settings.Filters = nil; settings.String() != "{}" {
			part.Rows = append(part.Rows, policyRow{Level: l.Level, Content: settings.String()})
		}
		for i, rule := range l.Policy.Filters {
			part.Rows = append(part.Rows, policyRow{l.Level, i + 1, l.Skipped[i], rule.String()})
		}
	}
	var text bytes.Buffer
	if s := row.Policy.String(); s != "{}" {
		_ = json.Indent(&text, []byte(s), "", "  ") // cannot fail: a Policy is valid JSON
	}
	part.Document = text.String()
	return part, nil
}

// replacePolicy replaces the operator's policy of the agent by the text of the form. An empty text removes it. If the
// text is refused, the answer is the agent's page with the text and the error.
func (p *Pages) replacePolicy(r *request) (answer, error) {
	text := r.PostFormValue("policy")
	document := bytes.TrimSpace([]byte(text))
	if len(document) == 0 {
		document = nil
	}
	_, err := p.Operator.ReplacePolicy(r.Context(), r.agentRef(), r.visitor.Name, policy.Operator, "", document)
	if refused, ok := errors.AsType[*operator.MisuseError](err); ok {
		if again, showErr := p.showAgent(r); showErr == nil {
			page := again.content.(agentPage)
			page.Policies.Document, page.Policies.Problem = text, refused.Text
			again.content, again.status = page, http.StatusBadRequest
			return again, nil
		}
	}
	return answer{location: r.agentURL()}, err
}
