package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// ObserveFailure records that an agent refused its credential, so that not every delivery calls it again, and completes
// the verdict. It adds the remedy for the operator. A refusal of headers that the job itself contained becomes final,
// because no stored credential could help. a is nil if the attempt failed before it was authorized.
func (z *Authorizer) ObserveFailure(a *Authorization, failure error, v outcome.Verdict) outcome.Verdict {
	if a == nil || v.Reason != outcome.AuthRequired {
		return v
	}
	call, ok := errors.AsType[*mcpcall.CallError](failure)
	if ok {
		says := oauth.ParseChallenge(call.Challenge)
		// The challenge names OAuth metadata (RFC 9728 §5.1), and no OAuth credential is stored that could be the
		// cause.
		a.wantsOAuth = says.Bearer && says.Metadata != "" && !a.Subject.OwnHeaders &&
			(a.token == nil || !a.token.OAuth())
	}
	if z != nil && !a.Subject.OwnHeaders {
		z.rememberRefusal(a, failure, v)
	}
	if call != nil && (a.Endpoint.Listed || a.wantsOAuth || a.withheld != nil) {
		v.Text += ": " + a.describeRemedy()
	}
	if a.Subject.OwnHeaders {
		v.Reason, v.Ending, v.Free, v.AgentFault = outcome.AuthFailed, outcome.Rejected, false, false
	}
	return v
}

// rememberRefusal records a refused credential. It does not record a tools/call refused with 403: its content may be
// the reason, which must not delay the deliveries of other clients.
func (z *Authorizer) rememberRefusal(a *Authorization, failure error, v outcome.Verdict) {
	if v.Reason != outcome.AuthRequired {
		return
	}
	agent := a.Subject.Agent
	if k, ok := z.known.Get(agent); ok {
		k.held.Store(true)
	}
	r := refusal{epoch: a.Subject.Epoch, url: sha256.Sum256([]byte(a.Endpoint.URL)), at: z.Now()}
	var call *mcpcall.CallError
	var renewal *renewalError
	switch {
	case a.wantsScope,
		errors.As(failure, &call) && (call.Status == http.StatusUnauthorized || call.Stage != mcpcall.StageCall):
		r.credential, r.wantsOAuth = a.Endpoint.ClientKey(), a.wantsOAuth
		if call == nil {
			r.remedy = v.Text
		}
		z.refused.Add(agent, r)
	case errors.As(failure, &renewal) && !z.refused.Contains(agent):
		// There was no credential to send, so the agent refused none. Once there is one, held deliveries are released.
		z.refused.Add(agent, r)
	}
}

// ObserveSuccess releases the deliveries of an agent that are held for lack of a credential (auth_required), after the
// agent accepted a call. It returns the tasks that the caller must put into Redis. A call with the job's own headers
// proves nothing about stored credentials. A call to an endpoint that the job named counts only if the agent refused a
// credential at that URL before. It queries the store once per epoch of the agent (see Subject.Epoch), and again after
// each refusal.
func (z *Authorizer) ObserveSuccess(ctx context.Context, a *Authorization) []ledger.Task {
	if z == nil || a.Subject.OwnHeaders {
		return nil
	}
	agent, epoch := a.Subject.Agent, a.Subject.Epoch
	if a.token != nil && a.token.OAuth() {
		z.acceptFresh(audience{agent, a.token.Origin})
	}
	r, ok := z.refused.Get(agent)
	if a.Subject.NamedByJob && (!ok || r.url != sha256.Sum256([]byte(a.Endpoint.URL))) {
		return nil
	}
	refused := z.refused.Remove(agent)
	if last, ok := z.released.Get(agent); ok && last >= epoch && !refused {
		return nil
	}
	k, ok := z.known.Get(agent)
	if !ok || !k.held.Swap(false) {
		return nil
	}
	z.released.Add(agent, epoch)
	n, tasks, err := z.Ledger.ReleaseHeld(context.WithoutCancel(ctx), agent, outcome.AuthRequired)
	switch {
	case err != nil:
		z.released.Remove(agent) // the next success tries again
		k.held.Store(true)
		z.Logger.Warn("deliveries that are held without a credential are not released yet, although the agent "+
			"accepts calls again", logging.About(logging.Postgres), "agent", agent.ID, "error", err)
	case n > 0:
		z.Logger.Info("deliveries that were held because a credential was missing are released: "+
			"the agent accepts calls again",
			"agent", agent.ID, "released", n)
	}
	return tasks
}

// describeRemedy describes what an operator can do about an agent after it refused its credential.
func (a *Authorization) describeRemedy() string {
	const token = "`worker token set` stores a credential for it and releases its held deliveries"
	switch agent := a.Subject.Agent; {
	case a.configured: // configured headers take precedence over a stored token
		return "correct its auth or headers in the servers file, which releases its held deliveries"
	case a.withheld != nil:
		return a.describeWithheld()
	case a.wantsOAuth:
		return fmt.Sprintf("it wants OAuth: `worker token set %[1]s --client-id ID`, or `worker token login %[1]s`",
			agent)
	case !a.Endpoint.Listed:
		return token
	}
	return "give it auth or headers in the servers file, or " + token
}

// describeWithheld explains why a token that is stored for the endpoint's origin was not sent.
func (a *Authorization) describeWithheld() string {
	t := *a.withheld
	where := text.Excerpt(t.URL(), 300)
	if t.Path == "" {
		where = "the registered endpoint at " + where
	}
	if a.Subject.NamedByJob {
		where += ", and an endpoint that a job names is sent it only if it is exactly that"
	}
	t.Path = CredentialPath(a.Endpoint.URL)
	return fmt.Sprintf("the token stored for this origin was not sent: it is for %s. To have one sent here "+
		"in its place, %s", where, howToStore(t))
}
