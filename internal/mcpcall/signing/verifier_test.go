package signing_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/signingtest"
	"github.com/agentherald/herald/receiver/callers"
)

const self = "https://agent.example"

// herald is a Herald with its keys and a server that publishes them.
type herald struct {
	t       testing.TB
	keyset  *secret.Keyset
	ring    *signing.Ring
	server  *httptest.Server
	asked   atomic.Int32
	away    atomic.Bool
	keys    signingtest.Shelf
	publish atomic.Pointer[[]byte] // the published directory; nil: the keys of the ring
}

func newHerald(t testing.TB) *herald {
	t.Helper()
	h := &herald{t: t}
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		switch p := h.publish.Load(); {
		case h.away.Load() || r.URL.Path != signing.DirectoryPath:
			w.WriteHeader(http.StatusBadGateway)
		case p != nil:
			_, _ = w.Write(*p)
		default:
			h.ring.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.server.Close)
	var err error
	h.keyset, err = secret.Create()
	heraldtest.Must(t, err)
	h.ring, err = signing.New(signing.Config{PublicURL: h.server.URL, Records: &h.keys, Keys: h.keyset})
	heraldtest.Must(t, err)
	heraldtest.Must(t, h.ring.Load(t.Context()))
	return h
}

// rotate replaces all keys by a new one that signs at once, before any verifier can have fetched it.
func (h *herald) rotate() {
	h.t.Helper()
	k, err := signing.NewKey(h.keyset)
	heraldtest.Must(h.t, err)
	h.keys.Put(nil, k)
	heraldtest.Must(h.t, h.ring.Load(h.t.Context()))
}

const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`

// request returns a request that Herald signed, in the form in which the agent's server receives it.
func (h *herald) request(method, target, body string) *http.Request {
	h.t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	sent, err := http.NewRequestWithContext(h.t.Context(), method, self+target, content)
	heraldtest.Must(h.t, err)
	if body != "" {
		sent.Header.Set("Content-Type", "application/json")
	}
	sent.Header.Set("Mcp-Session-Id", "s1")
	sent.Header.Set("Accept", "application/json")
	heraldtest.Must(h.t, h.ring.Sign(sent))
	got := httptest.NewRequest(method, target, strings.NewReader(body)) // behind a proxy, so that Host and scheme differ
	got.Header = sent.Header
	return got
}

func newVerifier(t testing.TB, h *herald, now func() time.Time) *callers.Verifier {
	t.Helper()
	v, err := callers.New(callers.Config{Herald: h.server.URL, Self: self, Client: h.server.Client(), Now: now})
	heraldtest.Must(t, err)
	return v
}

// TestCheck checks that a signed request is accepted once, with its body. A request that was changed in any part, or
// that another Herald signed, is refused.
func TestCheck(t *testing.T) {
	t.Parallel()
	h, stranger := newHerald(t), newHerald(t)
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	replace := func(name, old, by string) func(*http.Request) {
		return func(r *http.Request) {
			before := r.Header.Get(name)
			if r.Header.Set(name, strings.Replace(before, old, by, 1)); r.Header.Get(name) == before {
				t.Errorf("%s has no %s", name, old)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   string // "" means accepted
	}{
		"as it came":               {func(*http.Request) {}, ""},
		"headers that proxies add": {func(r *http.Request) { r.Header.Set("X-Forwarded-For", "10.0.0.1"); r.Header.Set("Accept", "*/*") }, ""},
		"another Host":             {func(r *http.Request) { r.Host = "evil.example" }, ""}, // the agent uses its own configured address
		"unsigned":                 {func(r *http.Request) { r.Header = http.Header{} }, "not signed"},
		"another method":           {func(r *http.Request) { r.Method = http.MethodPut }, "does not fit"},
		"another path":             {func(r *http.Request) { r.RequestURI = "/mcp2?x=1" }, "does not fit"},
		"another query":            {func(r *http.Request) { r.RequestURI = "/mcp?x=2" }, "does not fit"},
		"another body":             {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(message + " ")) }, "its body is not"},
		"no body":                  {func(r *http.Request) { r.Body = http.NoBody }, "its body is not"},
		"another body, with its digest": {func(r *http.Request) {
			other := h.request(http.MethodPost, "/mcp?x=1", "{}")
			r.Body = io.NopCloser(strings.NewReader("{}"))
			r.Header.Set("Content-Digest", other.Header.Get("Content-Digest"))
		}, "does not fit"},
		"another digest":       {set("Content-Digest", "sha-512=:AAAA:"), "its body is not"},
		"two digests":          {func(r *http.Request) { r.Header.Add("Content-Digest", "sha-512=:AAAA:") }, "its body is not"},
		"another type":         {set("Content-Type", "text/plain"), "does not fit"},
		"another session":      {set("Mcp-Session-Id", "s2"), "does not fit"},
		"one session more":     {func(r *http.Request) { r.Header.Add("Mcp-Session-Id", "s2") }, "does not fit"},
		"no session":           {func(r *http.Request) { r.Header.Del("Mcp-Session-Id") }, "that the request lacks"},
		"a revision more":      {set("Mcp-Protocol-Version", "2026-07-28"), "does not cover"},
		"another signer":       {set("Signature-Agent", `sig1="https://evil.example"`), "another signer"},
		"no signer":            {func(r *http.Request) { r.Header.Del("Signature-Agent") }, "another signer"},
		"another signature":    {replace("Signature", "sig1=:", "sig1=:A"), "does not fit"},
		"no signature":         {func(r *http.Request) { r.Header.Del("Signature") }, "does not fit"},
		"another label":        {replace("Signature-Input", "sig1=", "sig2="), "not signed"},
		"two signatures":       {func(r *http.Request) { r.Header.Add("Signature-Input", "sig2=()") }, "not signed"},
		"nothing covered":      {replace("Signature-Input", `"@method" `, ``), "does not cover"},
		"the body not covered": {replace("Signature-Input", `"content-digest" `, ``), "does not cover"},
		"covered twice":        {replace("Signature-Input", `"@method"`, `"@method" "@method"`), "covers a part twice"},
		"more covered":         {replace("Signature-Input", `"@method"`, `"@method" "x-none"`), "that the request lacks"},
		"much covered":         {replace("Signature-Input", `"@method"`, `"@method"`+strings.Repeat(` "x"`, 100)), "too many parts"},
		"a flag that is none":  {replace("Signature-Input", `"@method"`, `"@method";sf=1`), "not signed"},
		"longer":               {replace("Signature-Input", ";expires=1", ";expires=2"), "for another time"},
		"another nonce":        {replace("Signature-Input", `;nonce="`, `;nonce="A`), "does not fit"},
		"a short nonce":        {replace("Signature-Input", `;nonce="`, `;nonce="A";x="`), "its alg, tag or nonce"},
		"a nonce twice":        {replace("Signature-Input", `;nonce="`, `;nonce="A";nonce="`), "there twice"},
		"another algorithm":    {replace("Signature-Input", "ed25519", "hmac-sha256"), "its alg, tag or nonce"},
		"another tag":          {replace("Signature-Input", "web-bot-auth", "x"), "its alg, tag or nonce"},
		"no time":              {replace("Signature-Input", "created", "x"), "from when"},
		"another's key": {func(r *http.Request) {
			r.Header = stranger.request(http.MethodPost, "/mcp?x=1", message).Header
			r.Header.Set("Signature-Agent", `sig1="`+h.server.URL+`"`)
		}, "another's key"},
		"another's request": {func(r *http.Request) {
			r.Header = stranger.request(http.MethodPost, "/mcp?x=1", message).Header
		}, "another signer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(t, h, nil)
			r := h.request(http.MethodPost, "/mcp?x=1", message)
			c.change(r)
			err := v.Check(r)
			if c.want != "" {
				heraldtest.Fails(t, "the error", err, c.want)
				return
			}
			heraldtest.Must(t, err)
			if body, _ := io.ReadAll(r.Body); string(body) != message {
				t.Errorf("the body is %s", body)
			}
			r.Body = io.NopCloser(strings.NewReader(message))
			heraldtest.Fails(t, "again", v.Check(r), "came before")
		})
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} { // of streams and the end of a session
		v := newVerifier(t, h, nil)
		if err := v.Check(h.request(method, "/mcp", "")); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		chunked := h.request(method, "/mcp", "")
		chunked.ContentLength = -1 // as from a proxy that sends an empty body in chunks
		if err := v.Check(chunked); err != nil {
			t.Errorf("%s, chunked: %v", method, err)
		}
		grown := h.request(method, "/mcp", "")
		grown.Body, grown.ContentLength = io.NopCloser(strings.NewReader("x")), -1
		if err := v.Check(grown); err == nil {
			t.Errorf("%s: a body was added", method)
		}
	}
}

// TestSpellingOfAddresses checks that the configured addresses may be spelled as in a registration, although Herald
// signs a canonical form. A host that is not ASCII is refused.
func TestSpellingOfAddresses(t *testing.T) {
	t.Parallel()
	h := newHerald(t)
	for _, own := range []string{"https://Agent.example", "HTTPS://agent.example:443", "https://agent.example./", "http://agent.example:080",
		"http://agent.example:8080", "https://[2001:DB8:0::1]:443", "http://[::1]:8081", "https://agent.example/a%20b/Agents/"} {
		sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimSuffix(own, "/")+"/mcp?x=1", strings.NewReader(message))
		heraldtest.Must(t, err)
		heraldtest.Must(t, h.ring.Sign(sent))
		got := httptest.NewRequest(http.MethodPost, "/mcp?x=1", strings.NewReader(message)) // a proxy removed the path of Self
		got.Header = sent.Header
		v, err := callers.New(callers.Config{Herald: strings.ToUpper(h.server.URL) + "/", Self: own, Client: h.server.Client()})
		heraldtest.Must(t, err)
		if err := v.Check(got); err != nil {
			t.Errorf("%s: %v", own, err)
		}
	}
	_, err := callers.New(callers.Config{Herald: h.server.URL, Self: "https://münchen.example"})
	heraldtest.Fails(t, "the error", err, "Self must have a host in ASCII")
	for _, wrong := range [][2]string{{"", self}, {"h", self}, {self, ""}, {self, "agent.example"}, {self, "https://:443"}, {self, "ftp://agent.example"},
		{self, "https://agent.example?x"}, {self, "https://me@agent.example"}} {
		if _, err := callers.New(callers.Config{Herald: wrong[0], Self: wrong[1]}); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// TestTimes checks that a signature is valid for its lifetime plus one minute.
func TestTimes(t *testing.T) {
	t.Parallel()
	h := newHerald(t)
	r := h.request(http.MethodPost, "/mcp", message)
	began := time.Now()
	for after, good := range map[time.Duration]bool{0: true, signing.Lifetime: true, -30 * time.Second: true, signing.Lifetime + 2*time.Minute: false,
		-2 * time.Minute: false} {
		v := newVerifier(t, h, func() time.Time { return began.Add(after) })
		r.Body = io.NopCloser(strings.NewReader(message))
		if err := v.Check(r); (err == nil) != good {
			t.Errorf("after %s: %v", after, err)
		}
	}
}

// TestKeys checks that keys are fetched when they are needed, but not for each request with an unknown key.
func TestKeys(t *testing.T) {
	t.Parallel()
	h, stranger := newHerald(t), newHerald(t)
	now := time.Now()
	v := newVerifier(t, h, func() time.Time { return now })
	check := func(r *http.Request) error {
		r.Header.Set("Signature-Agent", `sig1="`+h.server.URL+`"`)
		return v.Check(r)
	}
	for range 5 {
		heraldtest.Must(t, check(h.request(http.MethodPost, "/mcp", message)))
		if err := check(stranger.request(http.MethodPost, "/mcp", message)); err == nil || errors.Is(err, callers.ErrNoKeys) {
			t.Errorf("a stranger: %v", err)
		}
	}
	heraldtest.Equal(t, "questions asked", h.asked.Load(), 1)
	// A new key is found, and a removed one is refused.
	old := h.request(http.MethodPost, "/mcp", message)
	now = now.Add(10 * time.Second)
	h.rotate()
	heraldtest.Must(t, check(h.request(http.MethodPost, "/mcp", message)))
	if err := check(old); err == nil {
		t.Error("a key that is published no more is taken")
	}
	// While the directory is unavailable, known keys are still accepted. A request with an unknown key gets status 503.
	h.away.Store(true)
	now = now.Add(2 * time.Minute)
	for range 3 {
		heraldtest.Must(t, check(h.request(http.MethodPost, "/mcp", message)))
	}
	h.rotate()
	r := h.request(http.MethodPost, "/mcp", message)
	w := httptest.NewRecorder()
	v.Require(http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a new key while it is away: %d", w.Code)
	}
	// A directory that is too long or invalid does not change the known keys.
	h.away.Store(false)
	for _, text := range []string{strings.Repeat(" ", 64<<10+1), "<html>", `{"keys":1}`} {
		now = now.Add(10 * time.Second)
		b := []byte(text)
		h.publish.Store(&b)
		if err := check(h.request(http.MethodPost, "/mcp", message)); !errors.Is(err, callers.ErrNoKeys) {
			t.Errorf("%.10s: %v", text, err)
		}
	}
}

// TestRequire checks that Require passes on Herald's requests, and refuses others with the reason.
func TestRequire(t *testing.T) {
	t.Parallel()
	h := newHerald(t)
	v, err := callers.New(callers.Config{Herald: h.server.URL + "/", Self: self + "/", MaxBody: 100})
	heraldtest.Must(t, err)
	var got []byte
	guarded := v.Require(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, _ = io.ReadAll(r.Body) }))
	for name, c := range map[string]struct {
		request *http.Request
		want    int
	}{
		"Herald":     {h.request(http.MethodPost, "/mcp", message), 200},
		"a stranger": {httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(message)), 401},
		"much":       {h.request(http.MethodPost, "/mcp", strings.Repeat("x", 101)), 413},
	} {
		w := httptest.NewRecorder()
		got = nil
		guarded.ServeHTTP(w, c.request)
		if w.Code != c.want || (c.want == 200) != bytes.Equal(got, []byte(message)) {
			t.Errorf("%s: %d %s, body %s", name, w.Code, w.Body, got)
		}
	}
	var large *http.MaxBytesError
	if err := v.Check(h.request(http.MethodPost, "/mcp", strings.Repeat("x", 101))); !errors.As(err, &large) {
		t.Errorf("much, to Check alone: %v", err)
	}
}

// FuzzCheck checks that requests of a different Herald are refused for any headers, without a panic.
func FuzzCheck(f *testing.F) {
	h := newHerald(f)
	real := h.request(http.MethodPost, "/mcp", message)
	for _, input := range []string{real.Header.Get("Signature-Input"), `sig1=("@method" "@target-uri" "signature-agent";key="sig1");created=1`, "sig1=(", ""} {
		f.Add(input, real.Header.Get("Signature"), real.Header.Get("Signature-Agent"), real.Header.Get("Content-Digest"))
	}
	stranger := newHerald(f)
	v := newVerifier(f, stranger, nil)
	f.Fuzz(func(t *testing.T, input, signature, agent, digest string) {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(message))
		for name, value := range map[string]string{"Signature-Input": input, "Signature": signature, "Signature-Agent": agent, "Content-Digest": digest} {
			r.Header.Set(name, value)
		}
		if v.Check(r) == nil {
			t.Error("it is taken")
		}
	})
}

// proxy fetches the directory from several workers in turn, without a network, and caches it as Cache-Control allows.
type proxy struct {
	rings []*signing.Ring
	n     int
	copy  *httptest.ResponseRecorder
	until time.Time // end of the copy
}

func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if !time.Now().Before(p.until) {
		p.copy = httptest.NewRecorder()
		p.rings[p.n%len(p.rings)].ServeHTTP(p.copy, r)
		p.n++
		age, err := strconv.Atoi(strings.TrimPrefix(p.copy.Header().Get("Cache-Control"), "public, max-age="))
		if err != nil {
			return nil, err
		}
		p.until = time.Now().Add(time.Duration(age) * time.Second)
	}
	return &http.Response{StatusCode: p.copy.Code, Header: p.copy.Header(), Body: io.NopCloser(bytes.NewReader(p.copy.Body.Bytes()))}, nil
}

// TestRotation checks that a verifier refuses no call during overlapping rotations, the last of which lets the new key
// sign after the shortest time, a minute. Two workers, which read the keys at different times, sign the calls. The
// verifier fetches the directory from either worker, behind a proxy that other verifiers use too.
func TestRotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keyset, err := secret.Create()
		heraldtest.Must(t, err)
		shelf := &signingtest.Shelf{}
		var rings []*signing.Ring
		ctx, stop := context.WithCancel(t.Context())
		for range 2 {
			r, err := signing.New(signing.Config{PublicURL: "https://herald.example", Records: shelf, Keys: keyset})
			heraldtest.Must(t, err)
			heraldtest.Must(t, r.Load(ctx))
			rings = append(rings, r)
			go r.Run(ctx)
			<-time.After(11 * time.Second) // so that the workers do not read at the same time
		}
		directory := &proxy{rings: rings}
		v, err := callers.New(callers.Config{Herald: "https://herald.example", Self: self, Client: &http.Client{Transport: directory}})
		heraldtest.Must(t, err)
		began, signed := time.Now(), map[string]int{}
		rotations := [][2]time.Duration{{10 * time.Minute, time.Hour}, {40 * time.Minute, time.Hour}, {150 * time.Minute, time.Minute}}
		for calls := 0; time.Since(began) < 27*time.Hour; calls++ {
			if len(rotations) > 0 && time.Since(began) >= rotations[0][0] {
				heraldtest.Must(t, rotate(shelf, keyset, rotations[0][1], 24*time.Hour))
				rotations = rotations[1:]
			}
			_, err := directory.RoundTrip(httptest.NewRequest(http.MethodGet, signing.DirectoryPath, nil)) // of another verifier
			heraldtest.Must(t, err)
			h := &herald{t: t, ring: rings[calls%2]}
			r := h.request(http.MethodPost, "/mcp", message)
			if err := v.Check(r); err != nil {
				t.Fatalf("after %s: %v", time.Since(began), err)
			}
			_, id, _ := strings.Cut(r.Header.Get("Signature-Input"), `keyid="`)
			signed[id]++
			pause := 7 * time.Second
			if time.Since(began) > 3*time.Hour { // only keys expire from then on
				pause = 5 * time.Minute
			}
			<-time.After(pause)
		}
		stop()
		heraldtest.Equal(t, "keys that signed", len(signed), 4)
		heraldtest.Equal(t, "published keys", strings.Count(string(rings[0].Directory()), `"kid"`), 1)
	})
}

// rotate changes a shelf as store.RotateSigningKey changes the table.
func rotate(s *signingtest.Shelf, keyset *secret.Keyset, after, keep time.Duration) error {
	keys, err := s.SigningKeys(context.Background())
	if err != nil {
		return err
	}
	next, err := signing.NewKey(keyset)
	next.ActivatesAt = time.Now().Add(after)
	until := next.ActivatesAt.Add(keep)
	for i, k := range keys {
		if k.RetiresAt == nil || until.Before(*k.RetiresAt) {
			keys[i].RetiresAt = &until
		}
	}
	s.Put(nil, append([]records.SigningKey{next}, keys...)...)
	return err
}
