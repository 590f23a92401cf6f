package ipfs_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/boxo/ipns"
	"github.com/ipfs/boxo/path"
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
	file := g.AddFile(content)
	dir := g.AddDirectory(map[string][]byte{"a b/agent.json": content})
	ed, rsa, chain, loop, stale, absent, lied := newKey(t, crypto.Ed25519), newKey(t, crypto.RSA), newKey(t, crypto.Ed25519), newKey(t, crypto.Ed25519),
		newKey(t, crypto.Ed25519), newKey(t, crypto.Ed25519), newKey(t, crypto.Ed25519)
	g.AddRecord(ed.name.String(), ed.record(t, "/ipfs/"+file.String(), 1, time.Hour, time.Minute))
	g.AddRecord(rsa.name.String(), rsa.record(t, "/ipfs/"+dir.String()+"/a b", 1, time.Hour, time.Minute))
	g.AddRecord(chain.name.String(), chain.record(t, "/ipns/"+rsa.name.String(), 1, time.Hour, time.Minute))
	g.AddRecord(loop.name.String(), loop.record(t, "/ipns/"+loop.name.String(), 1, time.Hour, time.Minute))
	g.AddRecord(stale.name.String(), stale.record(t, "/ipfs/"+file.String(), 1, -time.Hour, time.Minute))
	g.AddRecord(lied.name.String(), ed.record(t, "/ipfs/"+file.String(), 9, time.Hour, time.Minute)) // of another key
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, LookupTXT: txt(map[string][]string{
		"_dnslink.agent.example": {"v=spf1 -all", "dnslink=/ipfs/" + dir.String()},
		"_dnslink.name.example":  {"dnslink=/ipns/" + rsa.name.String()},
		"_dnslink.two.example":   {"dnslink=/ipfs/" + dir.String(), "dnslink=/ipfs/" + file.String()},
		"_dnslink.none.example":  {"v=spf1 -all"},
		"_dnslink.odd.example":   {"dnslink=/ipfs/nothing"},
	})})
	var (
		none        *ipfs.NoDocumentError
		notFound    *ipfs.NotFoundError
		unavailable *ipfs.UnavailableError
		invalid     *ipfs.InvalidError
	)
	for uri, want := range map[string]struct {
		dnsLink bool
		err     any
	}{
		"ipns://" + ed.name.String():                                           {},
		"ipns://" + ed.name.Peer().String():                                    {}, // 12D3KooW…
		"/ipns/" + ed.name.Cid().String():                                      {}, // base32
		"https://" + ed.name.String() + ".ipns.gateway.invalid/":               {},
		"https://gateway.invalid/ipns/" + rsa.name.String() + "/agent.json?t=": {},
		"ipns://" + rsa.name.String() + "/agent.json":                          {},
		"ipns://" + chain.name.String() + "/agent.json":                        {},
		"ipns://agent.example/a%20b/agent.json":                                {dnsLink: true},
		"ipns://name.example/agent.json":                                       {dnsLink: true},
		"ipns://" + rsa.name.String():                                          {err: &none}, // a directory
		"ipns://" + rsa.name.String() + "/missing.json":                        {err: &notFound},
		"ipns://" + loop.name.String():                                         {err: &invalid},
		"ipns://" + stale.name.String():                                        {err: &unavailable},
		"ipns://" + lied.name.String():                                         {err: &unavailable},
		"ipns://" + absent.name.String():                                       {err: &notFound},
		"ipns://two.example/":                                                  {err: &unavailable},
		"ipns://none.example/":                                                 {err: &notFound},
		"ipns://gone.example/":                                                 {err: &notFound},
		"ipns://broken.example/":                                               {err: &unavailable},
		"ipns://odd.example/":                                                  {err: &invalid},
		"ipns://neither":                                                       {err: &none},
		"ipns://exa mple.com/":                                                 {err: &none},
	} {
		doc, err := f.Fetch(t.Context(), uri, mib)
		switch {
		case want.err != nil:
			if err == nil || !errors.As(err, want.err) {
				t.Errorf("%s: %v, want %T", uri, err, want.err)
			}
		case err != nil:
			t.Errorf("%s: %v", uri, err)
		case string(doc.Bytes) != string(content) || doc.Source != "ipns" || doc.CID == "" || doc.DNSLink != want.dnsLink:
			t.Errorf("%s: %q, source %s, CID %q, DNSLink %t", uri, doc.Bytes, doc.Source, doc.CID, doc.DNSLink)
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
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, one.Handler()), serve(t, two.Handler())}, Hedge: 5 * time.Second,
		Now: func() time.Time { return time.Unix(0, now.Load()) }})
	uri := "ipns://" + k.name.String()
	fetch := func() (string, error) {
		doc, err := f.Fetch(t.Context(), uri, mib)
		return string(doc.Bytes), err
	}
	if got, err := fetch(); got != string(newer) || err != nil {
		t.Fatalf("%s, %v", got, err)
	}
	two.AddRecord(k.name.String(), stale)
	if got, err := fetch(); got != string(newer) || err != nil {
		t.Errorf("within its TTL: %s, %v", got, err)
	}
	now.Add(int64(time.Minute))
	if got, err := fetch(); !errors.As(err, new(*ipfs.UnavailableError)) {
		t.Errorf("an older record is taken: %s, %v", got, err)
	}
	now.Add(int64(time.Second)) // the fetcher remembers the failure for a moment
	one.AddRecord(k.name.String(), k.record(t, "/ipfs/"+first.String(), 6, time.Hour, time.Second))
	if got, err := fetch(); got != string(old) || err != nil {
		t.Errorf("after an update: %s, %v", got, err)
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

// TestFailuresAreRemembered: a failed fetch is not retried at once, but later. That a CID is a directory never changes,
// so it is not fetched again.
func TestFailuresAreRemembered(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	absent := g.AddFile([]byte("soon"))
	g.Remove(absent)
	dir := g.AddDirectory(map[string][]byte{"a": []byte("x")})
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, Now: func() time.Time { return time.Unix(0, now.Load()) }})
	requests := func() int { raw, cars := g.Requests(); return raw + cars }
	var notFound *ipfs.NotFoundError
	fails := func(want int) {
		t.Helper()
		if _, err := f.Fetch(t.Context(), "ipfs://"+absent.String(), mib); !errors.As(err, &notFound) || requests() != want {
			t.Errorf("%v after %d requests, want %d", err, requests(), want)
		}
	}
	fails(1)
	fails(1)
	now.Add(int64(600 * time.Millisecond))
	fails(2) // and the wait doubles
	now.Add(int64(600 * time.Millisecond))
	fails(2)
	g.AddFile([]byte("soon"))
	now.Add(int64(time.Second))
	if doc, err := f.Fetch(t.Context(), "ipfs://"+absent.String(), mib); err != nil || string(doc.Bytes) != "soon" {
		t.Errorf("%s, %v", doc.Bytes, err)
	}
	for range 2 {
		if _, err := f.Fetch(t.Context(), "ipfs://"+dir.String(), mib); !errors.As(err, new(*ipfs.NoDocumentError)) {
			t.Error(err)
		}
		now.Add(int64(5 * time.Minute))
	}
	heraldtest.Equal(t, "requests", requests(), 4)
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
	two := append(gzipped(t, []byte(`{"a":`)), gzipped(t, []byte(`1}`))...)
	for name, b := range map[string][]byte{"two members": two, "and something else": append(two, "\x00\x00 tail that is no gzip"...)} {
		doc, err := newFetcher(t, ipfs.Config{}).Fetch(t.Context(), "data:application/json;enc=gzip;base64,"+base64.StdEncoding.EncodeToString(b), mib)
		if err != nil || string(doc.Bytes) != `{"a":1}` {
			t.Errorf("%s: %q, %v", name, doc.Bytes, err)
		}
	}
}

// TestNameExpiresWhileItIsRead: an IPNS name and a DNSLink name are read more often than they expire. They are looked up
// again nevertheless, so that a new value arrives.
func TestNameExpiresWhileItIsRead(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	old, newer := []byte(`{"n":1}`), []byte(`{"n":2}`)
	first, second := g.AddFile(old), g.AddFile(newer)
	k := newKey(t, crypto.Ed25519)
	g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+first.String(), 1, 10*time.Minute, time.Minute))
	link := "dnslink=/ipfs/" + first.String()
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())},
		Now:       func() time.Time { return time.Unix(0, now.Load()) },
		LookupTXT: func(context.Context, string) ([]string, error) { return []string{link}, nil }})
	for i := range 60 { // half an hour, every 30 s; TTL of both names: 1 min; the record is valid for 10 min
		for _, uri := range []string{"ipns://" + k.name.String(), "ipns://agent.example"} {
			doc, err := f.Fetch(t.Context(), uri, mib)
			if err != nil {
				t.Fatal(uri, i, err)
			}
			if i == 59 {
				heraldtest.Equal(t, uri, string(doc.Bytes), string(newer))
			}
		}
		if i == 0 { // both owners publish new content
			g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+second.String(), 2, 24*time.Hour, time.Minute))
			link = "dnslink=/ipfs/" + second.String()
		}
		now.Add(int64(30 * time.Second))
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
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, Now: func() time.Time { return time.Unix(0, now.Load()) }})
	fetch := func(name string) (string, error) {
		doc, err := f.Fetch(t.Context(), "ipns://"+k.name.String()+"/"+name, mib)
		return string(doc.Bytes), err
	}
	if got, err := fetch("1.json"); got != `{"n":1}` || err != nil {
		t.Fatalf("%s, %v", got, err)
	}
	files["2.json"] = []byte(`{"n":2}`)
	publish(2)
	var absent *ipfs.NotFoundError
	if _, err := fetch("2.json"); err != nil && (!errors.As(err, &absent) || absent.Proven) {
		t.Errorf("the name's directory can change: %v", err)
	}
	now.Add(int64(2 * time.Minute)) // a delivery fetches a file six times in about three minutes
	if got, err := fetch("2.json"); got != `{"n":2}` || err != nil {
		t.Errorf("two minutes later: %s, %v", got, err)
	}
}
