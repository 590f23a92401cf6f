package ipfs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/boxo/ipns"
	"github.com/ipfs/boxo/path"
	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// key is an IPNS key and its name.
type key struct {
	private crypto.PrivKey
	name    ipns.Name
}

func newKey(t testing.TB, kind int) key {
	t.Helper()
	private, public, err := crypto.GenerateKeyPairWithReader(kind, 2048, rand.Reader)
	heraldtest.Must(t, err)
	id, err := peer.IDFromPublicKey(public)
	heraldtest.Must(t, err)
	return key{private, ipns.NameFromPeer(id)}
}

// record returns a signed record of the key's name with a value.
func (k key) record(t testing.TB, value string, sequence uint64, validity, ttl time.Duration) []byte {
	t.Helper()
	p, err := path.NewPath(value)
	heraldtest.Must(t, err)
	rec, err := ipns.NewRecord(k.private, p, sequence, time.Now().Add(validity), ttl)
	heraldtest.Must(t, err)
	b, err := ipns.MarshalRecord(rec)
	heraldtest.Must(t, err)
	return b
}

// txt returns a resolver of DNSLink TXT records.
func txt(records map[string][]string) func(context.Context, string) ([]string, error) {
	return func(_ context.Context, name string) ([]string, error) {
		if r, ok := records[name]; ok {
			return r, nil
		}
		if name == "_dnslink.broken.example" {
			return nil, &net.DNSError{Err: "server misbehaving", Name: name, IsTemporary: true}
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	content := []byte(`{"name":"agent"}`)
	file := g.AddFile(content).String()
	dir := g.AddDirectory(map[string][]byte{"a b/agent.json": content}).String()
	named := func(kind int, value string, validity time.Duration) ipns.Name {
		k := newKey(t, kind)
		g.AddRecord(k.name.String(), k.record(t, value, 1, validity, time.Minute))
		return k.name
	}
	ed, rsa := named(crypto.Ed25519, "/ipfs/"+file, time.Hour), named(crypto.RSA, "/ipfs/"+dir+"/a b", time.Hour)
	chain, stale := named(crypto.Ed25519, "/ipns/"+rsa.String(), time.Hour), named(crypto.Ed25519, "/ipfs/"+file, -time.Hour)
	loop, lied, absent := newKey(t, crypto.Ed25519), newKey(t, crypto.Ed25519), newKey(t, crypto.Ed25519)
	g.AddRecord(loop.name.String(), loop.record(t, "/ipns/"+loop.name.String(), 1, time.Hour, time.Minute))
	g.AddRecord(lied.name.String(), loop.record(t, "/ipfs/"+file, 9, time.Hour, time.Minute)) // of another key
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, LookupTXT: txt(map[string][]string{
		"_dnslink.agent.example": {"v=spf1 -all", "dnslink=/ipfs/" + dir},
		"_dnslink.name.example":  {"dnslink=/ipns/" + rsa.String()},
		"_dnslink.two.example":   {"dnslink=/ipfs/" + dir, "dnslink=/ipfs/" + file},
		"_dnslink.none.example":  {"v=spf1 -all"},
		"_dnslink.odd.example":   {"dnslink=/ipfs/nothing"},
	})})
	for uri, want := range map[string]string{
		"ipns://" + ed.String():                                           "ok",
		"ipns://" + ed.Peer().String():                                    "ok", // 12D3KooW…
		"/ipns/" + ed.Cid().String():                                      "ok", // base32
		"https://" + ed.String() + ".ipns.gateway.invalid/":               "ok",
		"https://gateway.invalid/ipns/" + rsa.String() + "/agent.json?t=": "ok",
		"ipns://" + rsa.String() + "/agent.json":                          "ok",
		"ipns://" + chain.String() + "/agent.json":                        "ok",
		"ipns://agent.example/a%20b/agent.json":                           "ok by DNSLink",
		"ipns://name.example/agent.json":                                  "ok by DNSLink",
		"ipns://" + rsa.String():                                          "none", // a directory
		"ipns://" + rsa.String() + "/missing.json":                        "not found",
		"ipns://" + loop.name.String():                                    "invalid",
		"ipns://" + stale.String():                                        "unavailable",
		"ipns://" + lied.name.String():                                    "unavailable",
		"ipns://" + absent.name.String():                                  "not found",
		"ipns://two.example/":                                             "unavailable",
		"ipns://none.example/":                                            "not found",
		"ipns://gone.example/":                                            "not found",
		"ipns://broken.example/":                                          "unavailable",
		"ipns://odd.example/":                                             "invalid",
		"ipns://neither":                                                  "none",
		"ipns://exa mple.com/":                                            "none",
	} {
		doc, err := f.Fetch(t.Context(), uri, mib)
		got := kind(err)
		if doc.DNSLink {
			got += " by DNSLink"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", uri, got, err, want)
		}
		if err == nil && (string(doc.Bytes) != string(content) || doc.Source != "ipns" || doc.CID == "") {
			t.Errorf("%s: %q, source %s, CID %q", uri, doc.Bytes, doc.Source, doc.CID)
		}
	}
}

// TestNamesGoForward: the record with the highest sequence wins, from whichever gateway. An older record is never
// accepted again, even if no gateway has a newer one.
func TestNamesGoForward(t *testing.T) {
	t.Parallel()
	k := newKey(t, crypto.Ed25519)
	one, two := ipfstest.New(), ipfstest.New()
	old, newer := []byte(`{"n":1}`), []byte(`{"n":2}`)
	two.Share(one)
	first, second := one.AddFile(old), one.AddFile(newer)
	stale := k.record(t, "/ipfs/"+first.String(), 4, time.Hour, time.Second)
	one.AddRecord(k.name.String(), stale)
	two.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 5, time.Hour, time.Second))
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, one.Handler()), serve(t, two.Handler())}, Hedge: 5 * time.Second, Now: now.Now})
	fetches := func(when string, want []byte) {
		t.Helper()
		doc, err := f.Fetch(t.Context(), "ipns://"+k.name.String(), mib)
		if want == nil && kind(err) != "unavailable" || want != nil && (err != nil || !bytes.Equal(doc.Bytes, want)) {
			t.Errorf("%s: %s, %v; want %s", when, doc.Bytes, err, want)
		}
	}
	fetches("at first", newer)
	two.AddRecord(k.name.String(), stale)
	fetches("within its TTL", newer)
	now.Advance(time.Minute)
	fetches("when only an older record is left", nil)
	now.Advance(time.Second) // the fetcher remembers the failure for a moment
	one.AddRecord(k.name.String(), k.record(t, "/ipfs/"+first.String(), 6, time.Hour, time.Second))
	fetches("after an update", old)
}

// TestNamesOfOneSequence: of two records with the same sequence, that with the later end of its validity is newer (IPNS
// specification), from whichever gateway.
func TestNamesOfOneSequence(t *testing.T) {
	t.Parallel()
	k := newKey(t, crypto.Ed25519)
	one, two := ipfstest.New(), ipfstest.New()
	two.Share(one)
	first, second := one.AddFile([]byte("old")), one.AddFile([]byte("new"))
	stale := k.record(t, "/ipfs/"+first.String(), 4, time.Hour, time.Second)
	one.AddRecord(k.name.String(), stale)
	two.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 4, 2*time.Hour, time.Second))
	urls := []string{serve(t, one.Handler()), serve(t, two.Handler())}
	for range 2 {
		f := newFetcher(t, ipfs.Config{Gateways: urls, Hedge: 5 * time.Second})
		for range 5 { // either gateway may answer first
			doc, err := f.FetchAnew(t.Context(), "ipns://"+k.name.String(), mib)
			if err != nil || string(doc.Bytes) != "new" {
				t.Errorf("%s, %v", doc.Bytes, err)
			}
		}
		slices.Reverse(urls)
	}
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: urls, Hedge: 5 * time.Second, Now: now.Now})
	if _, err := f.Fetch(t.Context(), "ipns://"+k.name.String(), mib); err != nil {
		t.Error(err)
	}
	two.AddRecord(k.name.String(), stale)
	if doc, err := f.FetchAnew(t.Context(), "ipns://"+k.name.String(), mib); kind(err) != "unavailable" {
		t.Errorf("when only the older record is left: %s, %v", doc.Bytes, err)
	}
	now.Advance(time.Second) // the fetcher remembers the failure for a moment
	two.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 4, time.Minute, time.Second))
	one.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 3, time.Minute, time.Second))
	if doc, err := f.FetchAnew(t.Context(), "ipns://"+k.name.String(), mib); err != nil || string(doc.Bytes) != "new" {
		t.Errorf("before its owner renewed the record: %s, %v", doc.Bytes, err)
	}
}

// TestFetchIf: FetchIf sends the validators of the earlier answer, and returns ErrUnchanged for 304. An unexpected 304
// is an error.
func TestFetchIf(t *testing.T) {
	t.Parallel()
	state := atomic.Pointer[string]{}
	set := func(s string) { state.Store(&s) }
	set(`"one"`)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", *state.Load())
		w.Header().Set("Last-Modified", "Sat, 21 Nov 2026 10:00:00 GMT")
		if r.Header.Get("If-None-Match") == *state.Load() || r.URL.Path == "/always" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write([]byte(`{}`)) // the client may have disconnected
	}))
	t.Cleanup(srv.Close)
	f := newFetcher(t, ipfs.Config{})
	doc, err := f.Fetch(t.Context(), srv.URL, mib)
	if err != nil || doc.Validators != (ipfs.Validators{ETag: `"one"`, LastModified: "Sat, 21 Nov 2026 10:00:00 GMT"}) {
		t.Fatalf("%+v, %v", doc.Validators, err)
	}
	_, err = f.FetchIf(t.Context(), srv.URL, mib, doc.Validators)
	heraldtest.Fails(t, "unchanged", err, ipfs.ErrUnchanged)
	set(`"two"`)
	if doc, err := f.FetchIf(t.Context(), srv.URL, mib, doc.Validators); err != nil || doc.Validators.ETag != `"two"` {
		t.Errorf("changed: %+v, %v", doc.Validators, err)
	}
	if _, err := f.Fetch(t.Context(), srv.URL+"/always", mib); !errors.As(err, new(*ipfs.UnavailableError)) {
		t.Errorf("304 unasked: %v", err)
	}
}

// TestFetchIfAfterMove: the validators of a document say nothing about another URL's, to which its URL is redirected.
func TestFetchIfAfterMove(t *testing.T) {
	t.Parallel()
	moved := atomic.Bool{}
	page := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(body))
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/agent.json", func(w http.ResponseWriter, r *http.Request) {
		if moved.Load() {
			http.Redirect(w, r, "/v2.json", http.StatusFound)
			return
		}
		page("old")(w, r)
	})
	mux.HandleFunc("/v2.json", page("new"))
	url := serve(t, mux) + "/agent.json"
	f := newFetcher(t, ipfs.Config{})
	doc, err := f.Fetch(t.Context(), url, mib)
	heraldtest.Must(t, err)
	moved.Store(true)
	doc, err = f.FetchIf(t.Context(), url, mib, doc.Validators)
	if err != nil || string(doc.Bytes) != "new" || doc.Validators != (ipfs.Validators{}) {
		t.Errorf("redirected: %q, %+v, %v", doc.Bytes, doc.Validators, err)
	}
}

// TestFailuresAreRemembered: a failed fetch is not retried at once, but later. That a CID is a directory never changes,
// so it is not fetched again.
func TestFailuresAreRemembered(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	absent := g.AddFile([]byte("soon"))
	g.Remove(absent)
	dir := g.AddDirectory(map[string][]byte{"a": []byte("x")})
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, Now: now.Now})
	fetches := func(c cid.Cid, want string, requests int) {
		t.Helper()
		_, err := f.Fetch(t.Context(), "ipfs://"+c.String(), mib)
		if raw, cars := g.Requests(); kind(err) != want || raw+cars != requests {
			t.Errorf("%s (%v) after %d requests, want %s after %d", kind(err), err, raw+cars, want, requests)
		}
	}
	fetches(absent, "not found", 1)
	fetches(absent, "not found", 1)
	now.Advance(600 * time.Millisecond)
	fetches(absent, "not found", 2) // and the wait doubles
	now.Advance(600 * time.Millisecond)
	fetches(absent, "not found", 2)
	g.AddFile([]byte("soon"))
	now.Advance(time.Second)
	fetches(absent, "ok", 3)
	fetches(dir, "none", 4)
	now.Advance(5 * time.Minute)
	fetches(dir, "none", 4)
}

// TestSilentGatewayIsAskedLast: a silent gateway at the first position loses it after the next one was faster three
// times.
func TestSilentGatewayIsAskedLast(t *testing.T) {
	t.Parallel()
	silent, honest := ipfstest.New(), ipfstest.New()
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	silent.Behave(ipfstest.Behaviour{Hold: hold})
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, silent.Handler()), serve(t, honest.Handler())}, Hedge: 400 * time.Millisecond})
	for i := range 20 {
		c := honest.AddFile([]byte{byte(i)})
		_, err := f.Fetch(t.Context(), "ipfs://"+c.String(), mib)
		heraldtest.Must(t, err)
	}
	if raw, _ := silent.Requests(); raw < 3 || raw > 10 { // it is asked again now and then, if the honest one takes longer than 400 ms
		t.Errorf("the silent one was asked %d times of 20", raw)
	}
}

// TestGzipMembers: gzip data of several members is read to the end. Bytes after the last member are ignored.
func TestGzipMembers(t *testing.T) {
	t.Parallel()
	two := append(ipfs.Zip(t, []byte(`{"a":`)), ipfs.Zip(t, []byte(`1}`))...)
	for name, b := range map[string][]byte{"two members": two, "and something else": append(two, "\x00\x00 tail that is no gzip"...)} {
		doc, err := newFetcher(t, ipfs.Config{}).Fetch(t.Context(), "data:application/json;enc=gzip;base64,"+base64.StdEncoding.EncodeToString(b), mib)
		if err != nil || string(doc.Bytes) != `{"a":1}` {
			t.Errorf("%s: %q, %v", name, doc.Bytes, err)
		}
	}
}

// TestNameExpiresWhileItIsRead: an IPNS name and a DNSLink name are read more often than they expire. They are looked up
// again nevertheless, so that a new value arrives. DNS has more than 5 s, after which Go asks the second nameserver.
func TestNameExpiresWhileItIsRead(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	old, newer := []byte(`{"n":1}`), []byte(`{"n":2}`)
	first, second := g.AddFile(old), g.AddFile(newer)
	k := newKey(t, crypto.Ed25519)
	g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+first.String(), 1, 10*time.Minute, time.Minute))
	link := "dnslink=/ipfs/" + first.String()
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, Now: now.Now,
		TryTimeout: 5 * time.Second, LookupTXT: func(ctx context.Context, _ string) ([]string, error) {
			if end, _ := ctx.Deadline(); time.Until(end) <= 5*time.Second {
				t.Errorf("DNS has %v", time.Until(end))
			}
			return []string{link}, nil
		}})
	for i := range 60 { // half an hour, every 30 s; TTL of both names: 1 min; the record is valid for 10 min
		for _, uri := range []string{"ipns://" + k.name.String(), "ipns://agent.example"} {
			doc, err := f.Fetch(t.Context(), uri, mib)
			heraldtest.Must(t, err)
			if i == 59 {
				heraldtest.Equal(t, uri, string(doc.Bytes), string(newer))
			}
		}
		if i == 0 { // both owners publish new content
			g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 2, 24*time.Hour, time.Minute))
			link = "dnslink=/ipfs/" + second.String()
		}
		now.Advance(30 * time.Second)
	}
}

// TestFileAddedBelowName: the owner of a name adds a file below it. That an older directory of the name lacks the file
// proves nothing, and the record is looked up again soon, even if its TTL is an hour.
func TestFileAddedBelowName(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	k := newKey(t, crypto.Ed25519)
	files := map[string][]byte{"1.json": []byte(`{"n":1}`)}
	publish := func(sequence uint64) {
		dir := g.AddDirectory(files)
		g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+dir.String(), sequence, 24*time.Hour, time.Hour))
	}
	publish(1)
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, Now: now.Now})
	fetch := func(name string) (string, error) {
		doc, err := f.Fetch(t.Context(), "ipns://"+k.name.String()+"/"+name, mib)
		return string(doc.Bytes), err
	}
	if got, err := fetch("1.json"); got != `{"n":1}` || err != nil {
		t.Fatalf("%s, %v", got, err)
	}
	files["2.json"] = []byte(`{"n":2}`)
	publish(2)
	if _, err := fetch("2.json"); kind(err) != "ok" && kind(err) != "not found" {
		t.Errorf("the name's directory can change: %v", err)
	}
	now.Advance(2 * time.Minute) // a delivery fetches a file six times in about three minutes
	if got, err := fetch("2.json"); got != `{"n":2}` || err != nil {
		t.Errorf("two minutes later: %s, %v", got, err)
	}
}
