package pages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/pgerror"
)

//go:embed templates static
var files embed.FS

// Config configures Pages.
type Config struct {
	Operator *operator.Operator
	Logger   *slog.Logger // default slog.Default()
}

// Pages renders the web pages.
type Pages struct {
	Config
	templates map[string]*template.Template // by page
	static    map[string]staticFile         // by path
}

// staticFile is a file whose path contains its hash, so that its content never changes.
type staticFile struct {
	mediaType string
	body      []byte
}

// pageNames are the templates of pages. Each is one file, which is rendered inside layout.html.
var pageNames = []string{"overview", "deliveries", "delivery", "groups", "find", "move", "agents", "agent", "client",
	"probe", "chains", "audit", "problem"}

// New parses the templates and loads the static files.
func New(cfg Config) (*Pages, error) {
	if cfg.Operator == nil {
		return nil, errors.New("pages: an operator is needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	p := &Pages{Config: cfg, templates: map[string]*template.Template{}, static: map[string]staticFile{}}
	links, err := p.loadStatic()
	if err != nil {
		return nil, err
	}
	funcs := p.templateFuncs(links)
	for _, name := range pageNames {
		p.templates[name], err = template.New("layout.html").Funcs(funcs).ParseFS(files, "templates/layout.html",
			"templates/parts.html", "templates/policy.html", "templates/"+name+".html")
		if err != nil {
			return nil, fmt.Errorf("pages: %w", err)
		}
	}
	return p, nil
}

// staticRoot is the path of the style sheet and the script.
const staticRoot = "/static/"

// loadStatic loads the files that pages link, and returns the path of each. The path contains the file's hash, so that
// browsers can cache the file without revalidating it.
func (p *Pages) loadStatic() (links map[string]string, err error) {
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".svg": "image/svg+xml"}
	links = map[string]string{}
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	for _, e := range entries {
		mediaType, ok := types[path.Ext(e.Name())]
		if !ok {
			continue // a note on the origin of a file
		}
		body, err := files.ReadFile("static/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("pages: %w", err)
		}
		sum := sha256.Sum256(body)
		at := staticRoot + hex.EncodeToString(sum[:6]) + "/" + e.Name()
		links[e.Name()], p.static[at] = at, staticFile{mediaType, body}
	}
	return links, nil
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() []server.Route {
	const read, operate = operator.ScopeRead, operator.ScopeOperate
	routes := []server.Route{
		{Path: "/{$}", Handle: p.page(p.showOverview)},
		{Path: "/deliveries", Handle: p.page(p.listDeliveries)},
		{Path: "/deliveries/groups", Handle: p.page(p.listGroups)},
		{Path: "/find", Handle: p.page(p.findText)},
		{Path: "/deliveries/move", Handle: p.page(p.countMove)},
		{Path: "/deliveries/{id}", Handle: p.page(p.showDelivery)},
		{Path: "/clients/{address}", Handle: p.page(p.showClient)},
		{Path: "/agents", Handle: p.page(p.listAgents)},
		{Path: "/agents/{agent}", Handle: p.page(p.showAgent)},
		{Path: "/chains", Handle: p.page(p.listChains)},
		{Path: "/audit", Handle: p.page(p.listAudit)},
		{Path: staticRoot, Handle: p.serveStatic},

		{Method: "POST", Path: "/deliveries/move", Handle: p.page(p.moveMany)},
		{Method: "POST", Path: "/deliveries/{id}/replay", Handle: p.page(p.moveOne(p.Operator.Replay))},
		{Method: "POST", Path: "/deliveries/{id}/cancel", Handle: p.page(p.moveOne(p.Operator.Cancel))},
		{Method: "POST", Path: "/agents/{agent}/enable", Handle: p.page(p.enableAgent(true))},
		{Method: "POST", Path: "/agents/{agent}/disable", Handle: p.page(p.enableAgent(false))},
		{Method: "POST", Path: "/agents/{agent}/refresh", Handle: p.page(p.refreshAgent)},
		{Method: "POST", Path: "/agents/{agent}/policy", Handle: p.page(p.replacePolicy)},
		{Method: "POST", Path: "/agents/{agent}/probe", Handle: p.page(p.probeAgent)},
	}
	for i := range routes {
		r := &routes[i]
		if r.Method == "" {
			r.Method, r.Scope = http.MethodGet, read
		} else {
			r.Scope, r.Form = operate, true
		}
	}
	return routes
}

// request is an HTTP request with its authenticated visitor.
type request struct {
	*http.Request
	w       http.ResponseWriter
	visitor server.Visitor
}

// answer is a page, or a redirect.
type answer struct {
	page     string // template
	title    string
	content  any
	status   int    // 0: 200
	location string // target of a redirect
}

// layout is the data of every page.
type layout struct {
	Page      string
	Title     string
	Path      string
	MayChange bool // show buttons: the token allows changes, or the first change asks for one
	FormToken string
	Version   string
	Content   any
}

// page returns a handler that renders the answer of ask.
func (p *Pages) page(ask func(*request) (answer, error)) func(http.ResponseWriter, *http.Request, server.Visitor) {
	return func(w http.ResponseWriter, r *http.Request, v server.Visitor) {
		got, err := ask(&request{r, w, v})
		if err != nil {
			got = p.describeProblem(r, err)
		}
		if got.location != "" {
			http.Redirect(w, r, got.location, http.StatusSeeOther)
			return
		}
		p.render(w, r, v, got)
	}
}

func (p *Pages) render(w http.ResponseWriter, r *http.Request, v server.Visitor, a answer) {
	var body bytes.Buffer
	err := p.templates[a.page].Execute(&body, layout{Page: a.page, Title: a.title, Path: r.URL.RequestURI(),
		MayChange: v.May(operator.ScopeOperate) || v.Anonymous, FormToken: v.FormToken, Version: buildinfo.Version(),
		Content: a.content})
	if err != nil {
		p.Logger.Error("a page could not be rendered", "page", a.page, "path", r.URL.Path, "error", err)
		server.AnswerError(w, http.StatusInternalServerError, "internal_error",
			"this page failed, and the worker's log says why")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // no-referrer would hide the origin of forms
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = body.WriteTo(w)
}

func (p *Pages) serveStatic(w http.ResponseWriter, r *http.Request, _ server.Visitor) {
	f, ok := p.static[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", f.mediaType)
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(f.body)
}

// problem is the page of an error.
type problem struct{ Text string }

func (p *Pages) describeProblem(r *http.Request, err error) answer {
	a := answer{page: "problem", title: "That did not work", status: http.StatusInternalServerError,
		content: problem{"This failed, and the worker's log says why."}}
	var misuse *operator.MisuseError
	var missing *operator.NotFoundError
	var overruled *operator.OverruledError
	var late *operator.LateError
	switch {
	case errors.As(err, &misuse):
		a.status, a.title = http.StatusBadRequest, "That cannot be meant"
		a.content = problem{strings.TrimPrefix(misuse.Text, "--")}
	case errors.As(err, &missing):
		a.status, a.title, a.content = http.StatusNotFound, "Not found", problem{missing.Text}
	case errors.As(err, &overruled):
		a.status, a.title, a.content = http.StatusConflict, "Nothing was changed", problem{overruled.Text}
	case r.Context().Err() != nil:
		a.status, a.content = http.StatusServiceUnavailable, problem{"The worker is shutting down: try again."}
	case errors.As(err, &late):
		p.Logger.Warn("a page took too long", logging.About(logging.Postgres), "path", r.URL.Path, "error", err)
		a.status, a.title = http.StatusServiceUnavailable, "The database took too long"
		a.content = problem{"Try again in a moment, or narrow the search."}
	case pgerror.Away(err), errors.Is(err, context.DeadlineExceeded):
		p.Logger.Warn("a page could not be shown", logging.About(logging.Postgres), "path", r.URL.Path, "error", err)
		a.status, a.title = http.StatusServiceUnavailable, "The database cannot be used"
		a.content = problem{"Deliveries wait, nothing is lost. Try again in a moment."}
	default:
		p.Logger.Error("a page failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	return a
}
