package inspect

import (
	"io"
	"net/http"
	"strings"

	"github.com/agentherald/herald/internal/mcpcall/signing"
)

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
