package signing

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/yaronf/httpsign"

	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	// Lifetime is the validity of a signature. An agent that allows clocks to differ must remember the nonce for that
	// difference longer.
	Lifetime = 5 * time.Minute
	// tag and label are the values of Web Bot Auth (draft-ietf-webbotauth-httpsig-protocol), which gateways expect.
	tag   = "web-bot-auth"
	label = "sig1"
)

// Sign signs a request by adding to its header, which no other request may share. Call it directly before sending. It
// reads the body through GetBody. The signature covers the method, the target URI, and of the header only the content
// type, the digest and all MCP headers (Mcp-…), which identify the session and inform gateways about the call. It does
// not cover Authorization, because gateways remove it.
func (r *Ring) Sign(req *http.Request) error {
	k := r.currentKey()
	if k == nil {
		return ErrNoKey
	}
	digest, err := digestBody(req)
	if err != nil {
		return err
	}
	covered := http.Header{"Signature-Agent": {label + `="` + r.cfg.PublicURL + `"`}}
	names := []string{"@method", "@target-uri"}
	if digest != "" {
		covered.Set("Content-Digest", digest)
		names = append(names, "content-digest")
	}
	first := len(names)
	for name, values := range req.Header {
		if lower := strings.ToLower(name); lower == "content-type" || strings.HasPrefix(lower, "mcp-") {
			covered[name] = values
			names = append(names, lower)
		}
	}
	slices.Sort(names[first:])
	fields := httpsign.Headers(names...)
	fields.AddDictHeader("signature-agent", label)

	expires := r.cfg.Clock().Add(Lifetime).Unix()
	settings := httpsign.NewSignConfig().SetExpires(expires).SetNonce(rand.Text()).SetTag(tag).SetKeyID(k.id)
	signer, err := httpsign.NewEd25519Signer(k.private, settings, fields)
	if err != nil {
		return fmt.Errorf("sign the request: %w", err)
	}
	// The library derives the target URI from the URL and would parse its query, which the agent chooses. An opaque URL
	// avoids that.
	target := string(netguard.OriginOf(req.URL)) + req.URL.RequestURI()
	scheme, rest, _ := strings.Cut(target, ":")
	input, signature, err := httpsign.SignRequest(label, *signer, &http.Request{Method: req.Method,
		URL: &url.URL{Scheme: scheme, Opaque: rest}, Header: covered})
	if err != nil {
		return fmt.Errorf("sign the request: %w", err)
	}
	req.Header.Set("Signature-Agent", covered.Get("Signature-Agent"))
	if digest != "" {
		req.Header.Set("Content-Digest", digest)
	}
	req.Header.Set("Signature-Input", input)
	req.Header.Set("Signature", signature)
	return nil
}

// digestBody returns the Content-Digest of the request's body; "" if there is no body.
func digestBody(req *http.Request) (string, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return "", nil
	}
	if req.GetBody == nil {
		return "", errors.New("sign the request: its body cannot be read twice")
	}
	body, err := req.GetBody()
	if err != nil {
		return "", fmt.Errorf("sign the request: %w", err)
	}
	defer func() { _ = body.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, body); err != nil { // only if memory runs out, because GetBody does not copy
		return "", fmt.Errorf("sign the request: %w", err)
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum.Sum(nil)) + ":", nil
}
