package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/text"
	"github.com/google/uuid"
)

// sendSamples runs the checks that call tools. It returns the error of the first sample.
func (c *checker) sendSamples(ctx context.Context) error {
	feedback := c.offers[checkFeedback]
	err := c.takeAll(ctx, feedback.calls)
	if c.judge(ctx, checkFeedback, err, fmt.Sprintf("it took %d samples", len(feedback.calls)),
		"answer a feedback with a result once it is stored") {
		err := c.takeAll(ctx, feedback.calls[:1])
		c.judge(ctx, checkRepeat, err, "it took the first sample again, with the same deliveryId",
			"remember each deliveryId, and answer a known one with a result")
		c.checkBatchAnswer(ctx)
		c.checkOptional(ctx, checkResponse, "it took responses")
		c.checkOptional(ctx, checkValidation, "it took validations")
		c.checkOptional(ctx, checkRevocation, "it took a client's revocation and a retraction after a reorg")
		c.checkSignature(ctx, checkUnsigned, unsigned)
		c.checkSignature(ctx, checkAltered, bodyChanged, signatureBroken)
		c.checkErrorForm(ctx)
	}
	c.checkAnswerTime(ctx)
	return err
}

// errStopped reports that a call was not made, because of an earlier call.
var errStopped = errors.New("not called")

// call makes one call and notes how long the answer took. The error also reports an answer with isError.
func (c *checker) call(ctx context.Context, r mcpcall.Request) (mcpcall.Answer, error) {
	if c.late != "" || ctx.Err() != nil {
		return mcpcall.Answer{}, errStopped
	}
	answer, took, err := c.send(ctx, r)
	var failed *mcpcall.CallError
	if errors.As(err, &failed) && failed.Timeout && ctx.Err() == nil {
		c.late = r.Tool
	}
	c.slowest = max(c.slowest, took)
	return answer, err
}

func (c *checker) takeAll(ctx context.Context, calls []mcpcall.Request) error {
	for _, r := range calls {
		if _, err := c.call(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// judge records the result of a check that ended with err. It skips the check if a call was not answered in time, and
// reports whether the check passed.
func (c *checker) judge(ctx context.Context, check string, err error, passed, remedy string) bool {
	switch {
	case err == nil:
		c.pass(check, "%s", passed)
	case ctx.Err() != nil:
		c.skip(check, "the time for all checks ended before this one")
	case c.late != "":
		c.skip(check, "not checked, because "+c.late+" did not answer in time")
	default:
		c.fail(check, err, remedy)
	}
	return err == nil
}

// checkBatchAnswer sends two feedbacks in one call.
func (c *checker) checkBatchAnswer(ctx context.Context) {
	o := c.offers[checkBatch]
	if len(o.calls) == 0 {
		return
	}
	var items, about []any
	for _, r := range o.calls {
		items, about = append(items, r.Arguments), append(about, r.Meta[metaKey])
	}
	answer, err := c.call(ctx, mcpcall.Request{Tool: o.tool, Arguments: map[string]any{delivery.BatchArgument: items},
		Meta: map[string]any{metaKey: about}})
	if err == nil {
		statuses := delivery.ItemStatuses(answer)
		for i, id := range o.ids {
			if statuses[id] == "" {
				err = fmt.Errorf("the answer to %d deliveries has no result, or two, for element %d", len(items), i+1)
				break
			}
		}
	}
	c.judge(ctx, checkBatch, err, fmt.Sprintf("it answered for each of %d deliveries", len(items)),
		`answer {"results": [{"deliveryId", "status": "accepted"}, …]} with one result for each delivery`)
}

// checkOptional sends the samples of an optional tool.
func (c *checker) checkOptional(ctx context.Context, check, passed string) {
	if o := c.offers[check]; len(o.calls) > 0 {
		c.judge(ctx, check, c.takeAll(ctx, o.calls), passed, "answer with a result, also for a feedback that you do not know")
	}
}

// checkSignature sends requests that the server must refuse if it relies on Herald's signature.
func (c *checker) checkSignature(ctx context.Context, check string, how ...tampering) {
	switch {
	case c.auth.Endpoint.URL == "":
		c.skip(check, "requests to a command have no signature")
		return
	case !c.signs:
		c.skip(check, "Herald signs nothing here: set HERALD_PUBLIC_URL, and let this command reach the worker's database")
		return
	}
	for _, h := range how {
		_, err := c.call(withTampering(ctx, h), c.offers[checkFeedback].calls[0])
		var refused *mcpcall.CallError
		if errors.As(err, &refused) && (refused.Status/100 == 4 || refused.Code != 0) {
			continue
		}
		if err == nil && len(c.auth.Endpoint.Headers) > 0 {
			c.skip(check, "it took "+h.String()+": the credential that Herald sends protects it")
			return
		}
		if err == nil {
			err = errors.New("it took " + h.String())
		}
		c.judge(ctx, check, err, "", "answer HTTP 401 unless the signature is valid (docs/agents.md, Know who calls)")
		return
	}
	c.pass(check, "it refuses such requests")
}

// checkErrorForm checks that errors have the form of MCP, so that Herald can tell a refused call from a broken server.
func (c *checker) checkErrorForm(ctx context.Context) {
	const remedy = "answer with a JSON-RPC error or with isError"
	answer, err := c.call(ctx, mcpcall.Request{Tool: "agent.receiveNothing", Arguments: map[string]any{}})
	if err == nil {
		err = errors.New("a tool that it does not offer answered with a result")
	}
	if wrong := c.errorForm(answer, err); wrong != nil {
		c.judge(ctx, checkErrors, fmt.Errorf("to a call of an unknown tool, %w", wrong), "", remedy)
		return
	}
	arguments := map[string]any{"deliveryId": uuid.NewString(), "clientAddress": 7, "feedbackIndex": "seven"}
	answer, err = c.call(ctx, mcpcall.Request{Tool: c.offers[checkFeedback].tool, Arguments: arguments,
		Meta: c.first.callMeta()})
	if wrong := c.errorForm(answer, err); wrong != nil {
		c.judge(ctx, checkErrors, fmt.Errorf("to wrong arguments, %w", wrong), "", remedy)
		return
	}
	c.pass(checkErrors, "it answers an unknown tool and wrong arguments in the form of MCP")
}

// errorForm returns err unless the answer has the form of MCP: a result, or a JSON-RPC error without an HTTP status
// that says that the server is broken.
func (c *checker) errorForm(answer mcpcall.Answer, err error) error {
	var failed *mcpcall.CallError
	if err == nil || answer.IsError || errors.As(err, &failed) && failed.Code != 0 && failed.Status < 500 {
		return nil
	}
	return err
}

// checkAnswerTime judges the time of all answers.
func (c *checker) checkAnswerTime(ctx context.Context) {
	within := netguard.Seconds(c.callTimeout())
	if c.late != "" {
		c.fail(checkTime, text.Printable(c.late)+" did not answer within "+within, "answer when the event is stored, and work later")
		return
	}
	c.judge(ctx, checkTime, ctx.Err(), fmt.Sprintf("the slowest answer took %.0f ms; Herald waits %s", milliseconds(c.slowest), within), "")
}
