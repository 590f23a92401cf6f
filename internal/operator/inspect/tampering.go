package inspect

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/agentherald/herald/internal/signing"
)

// tampering is how a request of a check differs from a signed request of a delivery.
type tampering int

const (
	unsigned        tampering = iota + 1 // it has no signature
	bodyChanged                          // its body was changed after it was signed
	signatureBroken                      // its signature is not valid
)

func (t tampering) String() string {
	switch t {
	case unsigned:
		return "a request without a signature"
	case bodyChanged:
		return "a request whose body was changed after it was signed"
	default:
		return "a request with an invalid signature"
	}
}

type tamperingKey struct{}

// withTampering returns a context whose tool call is sent as how says. The connection was opened before, with signed
// requests.
func withTampering(ctx context.Context, how tampering) context.Context {
	return context.WithValue(ctx, tamperingKey{}, how)
}

// tamperingSigner signs requests as deliveries do, except for requests with a context of withTampering.
type tamperingSigner struct{ ring *signing.Ring }

// Sign implements transport.Signer.
func (s tamperingSigner) Sign(req *http.Request) error {
	how, _ := req.Context().Value(tamperingKey{}).(tampering)
	if how == unsigned {
		return nil
	}
	if err := s.ring.Sign(req); err != nil {
		return err
	}
	switch how {
	case bodyChanged:
		return appendSpace(req)
	case signatureBroken:
		const start = "sig1=:"
		value := []byte(req.Header.Get("Signature"))
		if at := strings.Index(string(value), start); at >= 0 && len(value) > at+len(start) {
			first := &value[at+len(start)]
			*first = map[bool]byte{true: 'B', false: 'A'}[*first == 'A']
		}
		req.Header.Set("Signature", string(value))
	}
	return nil
}

// appendSpace appends a space to the request's body, which is JSON. Its meaning stays the same, its digest does not.
func appendSpace(req *http.Request) error {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	text = append(text, ' ')
	_ = req.Body.Close()
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	req.GetBody = nil // the changed request must not be sent again with the original body
	return nil
}
