package ipfstest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/ipfs/boxo/ipld/merkledag"
	uio "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/ipfs/go-cid"
	"github.com/ipld/go-car/v2"
	"github.com/ipld/go-car/v2/storage"

	format "github.com/ipfs/go-ipld-format"
)

// Behaviour configures how a gateway misbehaves. The zero value is an honest gateway.
type Behaviour struct {
	// Status answers every request with this status instead of content.
	Status int
	// HTML answers with a web page and status 200.
	HTML bool
	// Hold blocks every request until the channel is closed or the client disconnects.
	Hold <-chan struct{}
	// NoCAR answers CAR requests with 406. EmptyCAR answers them with 200 and a CAR without blocks.
	NoCAR, EmptyCAR bool
	// WholeTree ignores dag-scope and sends all blocks below the path.
	WholeTree bool
}

// Gateway is a gateway with its content, its handler and its counters. It is safe for concurrent use.
type Gateway struct {
	store store

	mu        sync.Mutex
	behaviour Behaviour
	raw, cars int
	records   map[string][]byte // by name as it is written in a URL
}

// New returns an empty, honest gateway.
func New() *Gateway { return &Gateway{store: newStore()} }

// Behave changes how the gateway answers, from the next request on.
func (g *Gateway) Behave(b Behaviour) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.behaviour = b
}

// Share makes g serve the content of other, so that two gateways differ only in their behaviour. Call it before
// serving.
func (g *Gateway) Share(other *Gateway) { g.store = other.store }

// Requests returns the number of raw and CAR requests so far.
func (g *Gateway) Requests() (raw, cars int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.raw, g.cars
}

// AddRecord makes g serve an IPNS record under a name in base36 (k51…).
func (g *Gateway) AddRecord(name string, record []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.records == nil {
		g.records = make(map[string][]byte)
	}
	g.records[name] = record
}

func (g *Gateway) serveRecord(w http.ResponseWriter, name string) {
	g.mu.Lock()
	record, ok := g.records[name]
	g.mu.Unlock()
	if !ok {
		http.Error(w, "no such name", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.ipfs.ipns-record")
	_, _ = w.Write(record) // the client may have disconnected
}

// Handler serves /ipfs/CID?format=raw, /ipfs/CID[/path]?format=car and /ipns/NAME?format=ipns-record.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	wanted := r.URL.Query().Get("format")
	g.mu.Lock()
	b := g.behaviour
	switch wanted {
	case "raw":
		g.raw++
	case "car":
		g.cars++
	}
	g.mu.Unlock()

	if b.Hold != nil {
		select {
		case <-b.Hold:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case b.Status != 0:
		http.Error(w, http.StatusText(b.Status), b.Status)
	case b.HTML:
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>Gateway</title><p>Please use a browser."))
	default:
		g.content(w, r, wanted, b)
	}
}

func (g *Gateway) content(w http.ResponseWriter, r *http.Request, wanted string, b Behaviour) {
	if name, ok := strings.CutPrefix(r.URL.Path, "/ipns/"); ok && wanted == "ipns-record" {
		g.serveRecord(w, name)
		return
	}
	if wanted == "raw" && r.URL.Path == "/ipfs/bafkqaaa" { // the empty block, which every gateway has
		w.Header().Set("Content-Type", "application/vnd.ipld.raw")
		return
	}
	root, segments, err := splitPath(r.URL.EscapedPath())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case wanted == "raw" && len(segments) == 0:
		g.serveRaw(w, r, root)
	case wanted == "car" && b.NoCAR:
		http.Error(w, "CAR is not served here", http.StatusNotAcceptable)
	case wanted == "car":
		g.serveCAR(w, r, root, segments, b)
	default:
		http.Error(w, "only format=raw and format=car are served", http.StatusNotAcceptable)
	}
}

// splitPath parses /ipfs/CID/segments.
func splitPath(p string) (cid.Cid, []string, error) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	if len(parts) < 2 || parts[0] != "ipfs" {
		return cid.Undef, nil, errors.New("only /ipfs/ is served")
	}
	root, err := cid.Decode(parts[1])
	if err != nil {
		return cid.Undef, nil, fmt.Errorf("reading the CID: %w", err)
	}
	var segments []string
	for _, s := range parts[2:] {
		name, err := url.PathUnescape(s)
		if err != nil {
			return cid.Undef, nil, fmt.Errorf("reading the path: %w", err)
		}
		segments = append(segments, name)
	}
	return root, segments, nil
}

func (g *Gateway) serveRaw(w http.ResponseWriter, r *http.Request, c cid.Cid) {
	blk, err := g.store.blocks.Get(r.Context(), c)
	if err != nil {
		http.Error(w, "block not found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.ipld.raw")
	w.Header().Set("Content-Length", strconv.Itoa(len(blk.RawData())))
	_, _ = w.Write(blk.RawData()) // the client may have disconnected
}

func (g *Gateway) serveCAR(w http.ResponseWriter, r *http.Request, root cid.Cid, segments []string, b Behaviour) {
	w.Header().Set("Content-Type", "application/vnd.ipld.car; version=1; order=dfs; dups=n")
	out, err := storage.NewWritable(w, []cid.Cid{root}, car.WriteAsCarV1(true))
	if err != nil {
		http.Error(w, "starting a CAR", http.StatusInternalServerError)
		return
	}
	if b.EmptyCAR {
		return
	}
	// A missing block ends the stream, as in Kubo: the header with status 200 was already sent.
	_ = g.emit(r.Context(), out, root, segments, b)
}

func (g *Gateway) emit(ctx context.Context, out storage.WritableCar, root cid.Cid, segments []string, b Behaviour) error {
	put := func(n format.Node) error { return out.Put(ctx, n.Cid().KeyString(), n.RawData()) }
	// The directories' Find reads through dag, so that every block on the path (including HAMT shards) is written
	// when it is read.
	dag := &teeDAG{DAGService: g.store.dag, put: put}
	n, err := dag.Get(ctx, root)
	if err != nil {
		return err
	}
	for _, s := range segments {
		dir, err := uio.NewDirectoryFromNode(dag, n)
		if err != nil {
			return err
		}
		n, err = dir.Find(ctx, s)
		if errors.Is(err, os.ErrNotExist) {
			return nil // the blocks so far prove that the name does not exist
		}
		if err != nil {
			return err
		}
	}
	_, err = uio.NewDirectoryFromNode(g.store.dag, n)
	if isDir := err == nil; isDir && !b.WholeTree {
		return nil // with scope "entity", a directory's own block is enough
	}
	return merkledag.Walk(ctx, merkledag.GetLinksDirect(dag), n.Cid(), cid.NewSet().Visit)
}

// teeDAG writes every node that is read through it.
type teeDAG struct {
	format.DAGService
	put func(format.Node) error
}

func (t *teeDAG) Get(ctx context.Context, c cid.Cid) (format.Node, error) {
	n, err := t.DAGService.Get(ctx, c)
	if err == nil {
		err = t.put(n)
	}
	return n, err
}
