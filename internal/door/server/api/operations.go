package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/store/ledger"
)

// MoveOne holds the options of replaying or cancelling one delivery.
type MoveOne struct {
	Force bool `json:"force,omitempty"` // replay: even if it was delivered; cancel: even if it is running
}

// MoveMany selects the deliveries to replay or cancel. At least one field must be set.
type MoveMany struct {
	operator.Selection
	DryRun *bool `json:"dryRun"`          // true only counts; required
	Force  bool  `json:"force,omitempty"` // as in MoveOne
	Rate   int   `json:"rate,omitempty"`  // maximum of deliveries in a second; 0: no limit
}

// ChainList is the list of chains that are followed.
type ChainList struct {
	Chains []operator.ChainState `json:"chains"`
}

func (a *API) listDeliveries(r *request) (page operator.DeliveryPage, err error) {
	s := operator.Selection{Agent: r.text("agent"), Registry: r.text("registry"), Client: r.text("client"),
		Transaction: r.text("transaction"), Key: r.text("key"), Status: r.joinStatuses(), Reason: r.text("reason"),
		Sentence: r.text("sentence"), Kind: r.text("kind"), Since: r.text("since"), Until: r.text("until"),
		EndedSince: r.text("endedSince")}
	if s.Reorged, err = r.readBool("reorged"); err != nil {
		return page, err
	}
	cursor, limit, err := r.readPage()
	if err != nil {
		return page, err
	}
	return a.Operator.ListDeliveries(r.Context(), s, cursor, limit)
}

// joinStatuses returns the statuses of the query, which may be repeated or separated by commas.
func (r *request) joinStatuses() string { return strings.Join(r.URL.Query()["status"], ",") }

func (a *API) listGroups(r *request) (operator.GroupList, error) {
	return a.Operator.ShowGroups(r.Context(), r.joinStatuses(), r.text("endedSince"))
}

func (a *API) findText(r *request) (operator.MatchList, error) {
	return a.Operator.Find(r.Context(), r.text("text"))
}

func (a *API) showDelivery(r *request) (operator.Delivery, error) {
	return a.Operator.ShowDelivery(r.Context(), r.PathValue("id"))
}

// reportHandler answers with the report of a replay or a cancellation.
type reportHandler = func(*request) (*operator.MoveReport, error)

func (a *API) moveOne(move operator.Mover) reportHandler {
	return func(r *request) (*operator.MoveReport, error) {
		var how MoveOne
		if err := r.readBody(&how); err != nil {
			return nil, err
		}
		report, err := move(r.Context(), operator.MoveRequest{IDs: []string{r.PathValue("id")}, Force: how.Force,
			Actor: r.visitor.Name})
		if report == nil || len(report.Left) == 0 {
			return report, err
		}
		left := report.Left[0]
		if left.Why == ledger.NoSuchDelivery {
			return nil, refuse(http.StatusNotFound, "not_found", "", "delivery %s not found", left.ID)
		}
		return nil, refuse(http.StatusConflict, "not_changed", "",
			"delivery %s was left as it is: %s", left.ID, left.Why)
	}
}

func (a *API) moveMany(move operator.Mover) reportHandler {
	return func(r *request) (*operator.MoveReport, error) {
		var m MoveMany
		if err := r.readBody(&m); err != nil {
			return nil, err
		}
		switch {
		case m.DryRun == nil:
			return nil, refuse(http.StatusBadRequest, "invalid_request", "dryRun",
				"say dryRun: true to count, false to change")
		case m.Selection == operator.Selection{}:
			return nil, refuse(http.StatusBadRequest, "invalid_request", "",
				"choose deliveries: by agent, registry, client, transaction, key, "+
					"status, reason, sentence, kind, since, until or endedSince")
		}
		_ = http.NewResponseController(r.w).SetWriteDeadline(time.Time{}) // the duration depends on the rate
		report, err := move(r.Context(), operator.MoveRequest{Selection: m.Selection, Force: m.Force, Rate: m.Rate,
			DryRun: *m.DryRun, Yes: !*m.DryRun, Actor: r.visitor.Name})
		if report != nil && report.Audit != 0 { // the changes are made, and the report's state says how they ended
			if err != nil {
				a.Logger.Info("a bulk move left some, or ended early",
					"action", report.Action, "audit", report.Audit, "error", err)
			}
			return report, nil
		}
		return report, err
	}
}

func (a *API) listAgents(r *request) (page operator.AgentPage, err error) {
	limit, err := r.readInt("limit", 50)
	if err != nil {
		return page, err
	}
	f := operator.AgentFilter{State: r.text("state"), Sort: r.text("sort"), Cursor: r.text("cursor"), Limit: int(limit)}
	if r.text("chain") != "" {
		chain, err := r.readInt("chain", 0)
		if err != nil {
			return page, err
		}
		f.Chain = new(uint64(chain))
	}
	return a.Operator.ListAgents(r.Context(), f)
}

func (r *request) agentRef() operator.AgentRef {
	return operator.AgentRef{Agent: r.PathValue("agent"), Registry: r.text("registry")}
}

func (a *API) showAgent(r *request) (operator.Agent, error) {
	return a.Operator.ShowAgent(r.Context(), r.agentRef())
}

func (a *API) enableAgent(enabled bool) func(*request) (operator.AgentChange, error) {
	return func(r *request) (operator.AgentChange, error) {
		return a.Operator.EnableAgent(r.Context(), r.agentRef(), r.visitor.Name, enabled)
	}
}

func (a *API) refreshAgent(r *request) (operator.AgentChange, error) {
	return a.Operator.RefreshAgent(r.Context(), r.agentRef(), r.visitor.Name)
}

func (a *API) showPolicy(r *request) (operator.AgentChange, error) {
	return a.Operator.ShowPolicy(r.Context(), r.agentRef())
}

func (a *API) replacePolicy(r *request) (out operator.AgentChange, err error) {
	var document json.RawMessage
	if err := r.readBody(&document); err != nil {
		return out, err
	}
	if document == nil {
		document = json.RawMessage{} // an empty body is no policy
	}
	return a.Operator.ReplacePolicy(r.Context(), r.agentRef(), r.visitor.Name, policy.Operator, "", document)
}

func (a *API) removePolicy(r *request) (operator.AgentChange, error) {
	return a.Operator.ReplacePolicy(r.Context(), r.agentRef(), r.visitor.Name, policy.Operator, "", nil)
}

func (a *API) probeAgent(r *request) (inspect.Probe, error) {
	ctx, cancel := context.WithTimeout(r.Context(), inspect.RequestTimeout)
	defer cancel()
	return inspect.ProbeAgent(ctx, a.Operator,
		inspect.ProbeRequest{AgentRef: r.agentRef(), Kind: string(job.KindNewFeedback)})
}

func (a *API) checkAgent(r *request) (report inspect.CheckReport, err error) {
	send, err := r.readBool("send")
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), inspect.RequestTimeout)
	defer cancel()
	return inspect.CheckAgent(ctx, a.Operator,
		inspect.ProbeRequest{AgentRef: r.agentRef(), Send: send})
}

func (a *API) showStats(r *request) (operator.Overview, error) {
	return a.Operator.ShowOverview(r.Context())
}

func (a *API) listChains(r *request) (ChainList, error) {
	all, err := a.Operator.ReadChains(r.Context())
	if all == nil {
		all = []operator.ChainState{}
	}
	return ChainList{all}, err
}

func (a *API) listAudit(r *request) (page operator.AuditPage, err error) {
	cursor, limit, err := r.readPage()
	if err != nil {
		return page, err
	}
	return a.Operator.ListAudit(r.Context(), cursor, limit)
}
