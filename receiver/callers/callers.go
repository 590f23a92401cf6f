// Package callers restricts an agent to requests from one Herald. It verifies the signature of each HTTP request (RFC
// 9421, Ed25519) with the keys that this Herald publishes. It uses only the standard library, and works with any MCP
// server that is an http.Handler.
package callers

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Config configures a Verifier.
type Config struct {
	// Herald is the HERALD_PUBLIC_URL of the Herald that may call, such as https://herald.example. Required. The hosts
	// of both addresses are in ASCII; New normalises the rest of their spelling.
	Herald string
	// Self is the scheme and host by which Herald calls this agent, as in its registration, with the path that a proxy
	// removes, if any. The agent cannot derive it from a request, because a proxy may change the Host header. Required.
	Self string
	// MaxBody bounds a request body, in bytes. Default 8 MiB.
	MaxBody int64
	// Client fetches the directory of keys. Default: a separate client.
	Client *http.Client
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

const (
	skew        = time.Minute      // maximum difference between the clocks of Herald and the agent
	maxLifetime = 10 * time.Minute // of a signature; Herald's are valid for 5 minutes
	maxCovered  = 64               // parts of a request in one signature
)

// Verifier verifies that requests come from Herald. It is safe for concurrent use.
type Verifier struct {
	cfg  Config
	keys *directory

	mu sync.Mutex
	// seen holds the nonces received, with the time after which they can be deleted. Only Herald can add one.
	seen  map[string]time.Time
	swept time.Time
}

// New validates cfg and returns a Verifier.
func New(cfg Config) (*Verifier, error) {
	for name, text := range map[string]*string{"Herald": &cfg.Herald, "Self": &cfg.Self} {
		address, err := normalizeAddress(*text)
		if err != nil {
			return nil, fmt.Errorf("callers: %s %w", name, err)
		}
		*text = address
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 8 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Verifier{cfg: cfg, keys: newDirectory(cfg.Herald, cfg.Client, cfg.Now), seen: map[string]time.Time{}}, nil
}

// normalizeAddress returns an address as Herald writes it in signatures: scheme and host in lower case, IP addresses in
// their shortest form, no default port, and no dot or slash at the end.
func normalizeAddress(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil {
		return "", errors.New("must be an http or https URL without query")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", fmt.Errorf("must have a host in ASCII, such as xn--mnchen-3ya.example: %s", host)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := strings.TrimLeft(u.Port(), "0")
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		host += ":" + port
	}
	return u.Scheme + "://" + host + strings.TrimSuffix(u.EscapedPath(), "/"), nil
}

// MustNew is New for a configuration that is part of the program. It panics if cfg is invalid.
func MustNew(cfg Config) *Verifier {
	v, err := New(cfg)
	if err != nil {
		panic(err)
	}
	return v
}

// Require passes requests from Herald to next and answers others with 401. If the keys cannot be fetched, it answers
// 503, so that Herald retries.
func (v *Verifier) Require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := v.Check(r)
		var large *http.MaxBytesError
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.As(err, &large):
			http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
		case errors.Is(err, ErrNoKeys):
			w.Header().Set("Retry-After", "10")
			http.Error(w, "the caller's identity cannot be verified now", http.StatusServiceUnavailable)
		default:
			http.Error(w, "only "+v.cfg.Herald+" may call: "+err.Error(), http.StatusUnauthorized)
		}
	})
}

// input is the form in which Herald writes Signature-Input: the covered parts, then parameters.
var (
	part  = `"[a-z0-9@-]+"(?:;key="sig1")?`
	input = regexp.MustCompile(
		`^sig1=(\(` + part + `(?: ` + part + `)*\)(?:;[a-z]+=(?:[0-9]{1,15}|"[!#-\[\]-~]{1,200}"))+)$`)
	parameter = regexp.MustCompile(`;([a-z]+)=(?:"([^"]*)"|([0-9]+))`)
)

// agentMember is the member of Signature-Agent that belongs to the signature.
const agentMember = `"signature-agent";key="sig1"`

// Check verifies one request. It reads the body and replaces it by a copy that can be read again. It accepts a
// signature once; a second request with the same signature is a replay. If the body is larger than MaxBody, the error
// wraps an *http.MaxBytesError.
func (v *Verifier) Check(r *http.Request) error {
	header := func(name string) string { return strings.Join(r.Header.Values(name), ", ") }
	form := input.FindStringSubmatch(header("Signature-Input"))
	if form == nil {
		return errors.New("it is not signed, or not as Herald signs")
	}
	params := map[string]string{}
	list, rest, _ := strings.Cut(form[1], ")")
	for _, p := range parameter.FindAllStringSubmatch(rest, -1) {
		if _, twice := params[p[1]]; twice {
			return errors.New("a parameter of the signature is there twice")
		}
		params[p[1]] = p[2] + p[3]
	}
	covered := strings.Fields(strings.TrimPrefix(list, "("))
	if err := v.checkCovered(r, covered); err != nil {
		return err
	}
	until, err := v.checkTimes(params)
	if err != nil {
		return err
	}
	if params["alg"] != "ed25519" || params["tag"] != "web-bot-auth" || len(params["nonce"]) < 16 {
		return errors.New("its alg, tag or nonce is not Herald's")
	}
	if header("Signature-Agent") != `sig1="`+v.cfg.Herald+`"` {
		return errors.New("it names another signer")
	}
	if err := checkDigest(r, v.cfg.MaxBody); err != nil {
		return err
	}

	var base strings.Builder
	for _, name := range covered {
		var value string
		switch name {
		case `"@method"`:
			value = r.Method
		case `"@target-uri"`:
			value = v.cfg.Self + r.RequestURI // as received, with the query
		case agentMember:
			value = `"` + v.cfg.Herald + `"`
		default:
			value = header(strings.Trim(name, `"`))
		}
		fmt.Fprintf(&base, "%s: %s\n", name, strings.TrimSpace(value))
	}
	base.WriteString(`"@signature-params": ` + form[1])
	public, err := v.keys.find(r.Context(), params["keyid"])
	if err != nil {
		return err
	}
	signature, ok := decodeBinary(header("Signature"), "sig1=")
	if !ok || !ed25519.Verify(public, []byte(base.String()), signature) {
		return errors.New("its signature does not fit: " +
			"it was changed on its way, or was signed for another address than " + v.cfg.Self)
	}
	if !v.remember(params["keyid"]+" "+params["nonce"], until) {
		return errors.New("it came before")
	}
	return nil
}

// checkCovered checks that the signature covers all parts of the request that identify the call. It does not require a
// digest, because checkDigest refuses a body without one.
func (v *Verifier) checkCovered(r *http.Request, covered []string) error {
	if len(covered) > maxCovered || len(slices.Compact(slices.Sorted(slices.Values(covered)))) != len(covered) {
		return errors.New("it covers a part twice, or too many parts")
	}
	need := []string{`"@method"`, `"@target-uri"`, agentMember}
	for name := range r.Header {
		if lower := strings.ToLower(name); lower == "content-type" || lower == "content-digest" ||
			strings.HasPrefix(lower, "mcp-") {
			need = append(need, `"`+lower+`"`)
		}
	}
	for _, name := range need {
		if !slices.Contains(covered, name) {
			return errors.New("its signature does not cover " + name)
		}
	}
	for _, name := range covered {
		header := strings.Trim(name, `"`)
		if !slices.Contains(need, name) && len(r.Header.Values(header)) == 0 {
			return errors.New("its signature covers a part that the request lacks")
		}
	}
	return nil
}

// checkTimes checks the period of the signature. It returns when its nonce can be deleted.
func (v *Verifier) checkTimes(params map[string]string) (until time.Time, err error) {
	seconds := func(name string) time.Time {
		n, e := strconv.ParseInt(params[name], 10, 64)
		err = errors.Join(err, e)
		return time.Unix(n, 0)
	}
	created, expires, now := seconds("created"), seconds("expires"), v.cfg.Now()
	switch {
	case err != nil:
		return until, errors.New("it does not say from when to when it is good")
	case created.After(now.Add(skew)), expires.Before(created), expires.Sub(created) > maxLifetime:
		return until, errors.New("it was signed for another time: do the clocks differ?")
	case !now.Before(expires.Add(skew)):
		return until, errors.New("it has expired")
	}
	return expires.Add(skew), nil
}

// remember stores a nonce. It returns false if the nonce is already stored.
func (v *Verifier) remember(nonce string, until time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.cfg.Now()
	if now.Sub(v.swept) > skew {
		for n, t := range v.seen {
			if !now.Before(t) {
				delete(v.seen, n)
			}
		}
		v.swept = now
	}
	_, known := v.seen[nonce]
	if !known {
		v.seen[nonce] = until
	}
	return !known
}

// checkDigest compares the body, of at most limit bytes, with Content-Digest, which the signature covers if there is a
// body. It replaces the body by a copy.
func checkDigest(r *http.Request, limit int64) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	if err != nil {
		return fmt.Errorf("its body cannot be read: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	params := strings.Join(r.Header.Values("Content-Digest"), ", ")
	if params == "" && len(body) == 0 {
		return nil
	}
	digest, ok := decodeBinary(params, "sha-256=")
	if sum := sha256.Sum256(body); !ok || !bytes.Equal(digest, sum[:]) {
		return errors.New("its body is not the one that was signed")
	}
	return nil
}

// decodeBinary decodes the value of the given name in text: base64 between colons.
func decodeBinary(text, name string) ([]byte, bool) {
	text, named := strings.CutPrefix(text, name+":")
	text, closed := strings.CutSuffix(text, ":")
	b, err := base64.StdEncoding.DecodeString(text)
	return b, named && closed && err == nil
}
