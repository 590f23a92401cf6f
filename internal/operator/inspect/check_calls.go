package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/signing"
)

// sendSamples runs the checks that call tools. It returns the error of the first one.
func (c *checker) sendSamples(ctx context.Context) error {
	feedback := c.calls["feedback"]
	_, err := c.call(ctx, feedback...)
	if c.judge(ctx, "feedback", err, "it took feedback", "answer feedback with a result once it is stored") {
		_, again := c.call(ctx, feedback[0])
		c.judge(ctx, "repeat", again, "it took the same deliveryId again",
			"remember each deliveryId, and answer a known one with a result")
		for _, r := range receivers[1:] {
			if calls := c.calls[r.check]; len(calls) > 0 {
				answer, err := c.call(ctx, calls...)
				for i, id := range c.batch {
					item := tools.Items(answer)[id]
					switch {
					case r.check != "batch" || err != nil || item.Status == tools.ItemAccepted:
					case item.Status == "":
						err = fmt.Errorf("the answer has no valid result, or two, for element %d of %d",
							i+1, len(c.batch))
					default:
						err = fmt.Errorf("the result of element %d of %d is %q: %.300s",
							i+1, len(c.batch), item.Status, item.Problem)
					}
				}
				c.judge(ctx, r.check, err, "it took each "+r.check,
					"answer with a result, even if you do not know the feedback")
			}
		}
		if calls := c.calls["size"]; len(calls) > 0 {
			_, err := c.call(ctx, calls...)
			c.judge(ctx, "size", err, "it took a file of 2 MiB", "allow request bodies of 8 MiB")
		}
		c.checkSignature(ctx, "unsigned", unsigned)
		c.checkSignature(ctx, "altered", bodyChanged, signatureBroken)
		c.checkErrorForm(ctx)
	}
	within := netguard.Seconds(c.callTimeout())
	if c.late != "" {
		c.fail("time", c.late+" did not answer within "+within, "answer when the event is stored, and work later")
		return err
	}
	c.judge(ctx, "time", ctx.Err(),
		fmt.Sprintf("the slowest answer took %s of %s", netguard.Seconds(c.slowest), within), "")
	return err
}

// call makes calls until one fails or is late, and returns the last answer. An answer with isError is an error.
func (c *checker) call(ctx context.Context, requests ...mcpcall.Request) (answer mcpcall.Answer, err error) {
	for _, r := range requests {
		if c.late != "" || ctx.Err() != nil {
			return answer, context.Canceled
		}
		var took time.Duration
		answer, took, err = c.send(ctx, r)
		c.slowest = max(c.slowest, took)
		if failed, ok := errors.AsType[*mcpcall.CallError](err); ok && failed.Timeout && ctx.Err() == nil {
			c.late = r.Tool
		}
		if err != nil {
			break
		}
	}
	return answer, err
}

// judge records the result of a check that ended with err, and reports whether the check passed.
func (c *checker) judge(ctx context.Context, check string, err error, passed, remedy string) bool {
	switch {
	case err == nil:
		c.pass(check, passed)
	case ctx.Err() != nil:
		c.skip(check, "the time for all checks ended")
	case c.late != "":
		c.skip(check, "not checked, because "+c.late+" did not answer in time")
	default:
		c.fail(check, err, remedy)
	}
	return err == nil
}

// checkSignature sends requests that a server must refuse if it relies on Herald's signature.
func (c *checker) checkSignature(ctx context.Context, check string, how ...tampering) {
	if !c.signs || c.auth.Endpoint.URL == "" {
		c.skip(check,
			"nothing is signed here: that needs HERALD_PUBLIC_URL, the worker's database, and a server with a URL")
		return
	}
	for _, h := range how {
		_, err := c.call(context.WithValue(ctx, tamperingKey{}, h), c.calls["feedback"][0])
		var refused *mcpcall.CallError
		switch {
		case errors.As(err, &refused) && (refused.Status/100 == 4 || refused.Code != 0):
			continue
		case err == nil && len(c.auth.Endpoint.Headers) > 0:
			c.skip(check, "it took "+string(h)+": it relies on the credential that Herald sends")
			return
		case err == nil:
			err = errors.New("it took " + string(h))
		}
		c.judge(ctx, check, err, "", "answer HTTP 401 unless the signature is valid (docs/agent.md, Verify the caller)")
		return
	}
	c.pass(check, "it refuses such requests")
}

// checkErrorForm makes two wrong calls: the form of an answer distinguishes a refusal from a broken server.
func (c *checker) checkErrorForm(ctx context.Context) {
	sample := c.calls["feedback"][0]
	unknown, wrong := sample, sample
	unknown.Tool = "agent.receiveNothing"
	wrong.Arguments = map[string]any{"deliveryId": newProbeID(), "clientAddress": 7, "feedbackIndex": "seven"}
	for _, r := range []mcpcall.Request{unknown, wrong} {
		answer, err := c.call(ctx, r)
		if err == nil && r.Tool == unknown.Tool {
			err = errors.New("it answers with a result")
		}
		var failed *mcpcall.CallError
		isMCP := answer.IsError || errors.As(err, &failed) && failed.Code != 0 && failed.Status < 500
		if err != nil && !isMCP {
			err = fmt.Errorf("to wrong arguments or an unknown tool (%s): %w", r.Tool, err)
			c.judge(ctx, "errors", err, "", "answer with a JSON-RPC error or with isError")
			return
		}
	}
	c.pass("errors", "it answers an unknown tool and wrong arguments in the form of MCP")
}

// tampering is a difference between a request of a check and a signed request of a delivery.
type tampering string

const (
	unsigned        tampering = "a request without a signature"
	bodyChanged     tampering = "a request whose body was changed after it was signed"
	signatureBroken tampering = "a request with an invalid signature"
)

// tamperingKey is the context key of a tool call's tampering. The call's connection was opened with signed requests.
type tamperingKey struct{}

// tamperingSigner signs requests as deliveries do, except for those with a tampering in their context.
type tamperingSigner struct{ ring *signing.Ring }

// Sign implements transport.Signer.
func (s tamperingSigner) Sign(req *http.Request) error {
	how := req.Context().Value(tamperingKey{})
	if how == unsigned {
		return nil
	}
	err := s.ring.Sign(req)
	switch {
	case err != nil:
	case how == bodyChanged: // a space after the JSON changes the digest, not the meaning
		req.Body = io.NopCloser(io.MultiReader(req.Body, strings.NewReader(" ")))
		req.ContentLength++
		req.GetBody = nil // net/http would send the original body in a second try
	case how == signatureBroken:
		req.Header.Set("Signature", "sig1=:"+strings.Repeat("A", 86)+"==:")
	}
	return err
}
