package resolver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/ipfs"
)

const wellKnown = "/.well-known/agent-registration.json"

// naming returns a registrations member that names an agent, with its registry in lower case.
func naming(id int) string {
	return fmt.Sprintf(`"registrations":[{"agentId":"%d","agentRegistry":"eip155:8453:%s"}]`, id, strings.ToLower(registry.Hex()))
}

// domain answers requests for a domain's list of agents.
type domain func(ctx context.Context) (ipfs.Document, error)

// lists is a domain whose list is text.
func lists(text string) domain {
	return func(context.Context) (ipfs.Document, error) {
		return ipfs.Document{Bytes: []byte(text), Source: ipfs.SourceHTTPS}, nil
	}
}

// fails is a domain whose list cannot be fetched.
func fails(err error) domain {
	return func(context.Context) (ipfs.Document, error) { return ipfs.Document{}, err }
}

// domains is a real fetcher, except for the lists of domains under .example, so that no test uses the internet.
type domains struct {
	*ipfs.Fetcher
	mu      sync.Mutex
	answers map[string]domain // by origin; documents by URL
	asked   []string          // requested URLs of lists
}

func (d *domains) set(origin string, answer domain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[origin] = answer
}

// take returns the URLs requested since the last call.
func (d *domains) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.asked
	d.asked = nil
	return out
}

func (d *domains) Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error) {
	origin, ok := strings.CutSuffix(uri, wellKnown)
	if !ok {
		d.mu.Lock()
		answer := d.answers[uri]
		d.mu.Unlock()
		if answer != nil {
			return answer(ctx)
		}
		return d.Fetcher.Fetch(ctx, uri, limit)
	}
	d.mu.Lock()
	d.asked = append(d.asked, uri)
	answer := d.answers[origin]
	d.mu.Unlock()
	switch {
	case answer == nil && strings.HasSuffix(origin, ".example"):
		_, host, _ := strings.Cut(origin, "://")
		return ipfs.Document{}, &ipfs.NotFoundError{URI: uri, Asked: []string{host}}
	case answer == nil:
		return d.Fetcher.Fetch(ctx, uri, limit)
	}
	doc, err := answer(ctx)
	if doc.Origin == "" && doc.Source == ipfs.SourceHTTPS {
		doc.Origin = netguard.Origin(origin)
	}
	if err == nil && int64(len(doc.Bytes)) > limit {
		return ipfs.Document{}, &ipfs.TooLargeError{URI: uri, Limit: limit}
	}
	return doc, err
}

// site is a web server with a document that can change and has an ETag, and with a list of agents.
type site struct {
	mu           sync.Mutex
	doc, tag     string
	list         string // empty: 404; a URL: a redirect to it
	full, same   int    // numbers of answers with the document and of 304 answers
	listRequests []string
}

func (s *site) put(doc, tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc, s.tag = doc, tag
}

func (s *site) setList(list string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = list
}

// counts returns the numbers of answers with the document and of 304 answers.
func (s *site) counts() (full, same int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full, s.same
}

func (s *site) serve(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == wellKnown {
		s.listRequests = append(s.listRequests, r.Method+" "+r.URL.RequestURI())
		if s.list == "" {
			http.NotFound(rw, r)
			return
		}
		if strings.HasPrefix(s.list, "http") {
			http.Redirect(rw, r, s.list, http.StatusFound)
			return
		}
		_, _ = io.WriteString(rw, s.list)
		return
	}
	rw.Header().Set("ETag", s.tag)
	if s.tag != "" && r.Header.Get("If-None-Match") == s.tag {
		s.same++
		rw.WriteHeader(http.StatusNotModified)
		return
	}
	s.full++
	_, _ = io.WriteString(rw, s.doc)
}
