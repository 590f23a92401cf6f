package pages

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// pageRows is the number of rows on a page of a list.
const pageRows = 50

// deliveriesPage is one page of deliveries, with the search that selected them.
type deliveriesPage struct {
	Search    search
	Table     deliveryTable
	NextURL   string
	First     bool // the first page, which refreshes by itself
	Searching bool
	Statuses  []outcome.Status
	Reasons   []outcome.Reason
	Kinds     []job.Kind
}

// readSelection reads a search from a query or a form.
func readSelection(q url.Values) operator.Selection {
	get := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	return operator.Selection{Agent: get("agent"), Registry: get("registry"), Client: get("client"),
		Transaction: get("transaction"), Key: get("key"), Status: strings.Join(q["status"], ","),
		Reason: get("reason"), Sentence: q.Get("sentence"), Kind: get("kind"), Since: get("since"),
		Until: get("until"), EndedSince: get("ended_since"), Reorged: get("reorged") == "true"}
}

// search is a search with its fields that are set, as names and values.
type search struct {
	operator.Selection
	Fields []jobField
}

func newSearch(s operator.Selection) (out search) {
	out.Selection = s
	reorged := ""
	if s.Reorged {
		reorged = "true"
	}
	for _, f := range [][2]string{{"agent", s.Agent}, {"registry", s.Registry}, {"client", s.Client},
		{"transaction", s.Transaction}, {"key", s.Key},
		{"status", s.Status}, {"reason", s.Reason}, {"sentence", s.Sentence}, {"kind", s.Kind}, {"since", s.Since},
		{"until", s.Until}, {"ended_since", s.EndedSince}, {"reorged", reorged}} {
		if f[1] != "" {
			out.Fields = append(out.Fields, jobField{Name: f[0], Value: f[1]})
		}
	}
	return out
}

// Query returns the search as an escaped query for links.
func (s search) Query() template.URL {
	var pairs []string
	for _, f := range s.Fields {
		pairs = append(pairs, f.Name, f.Value)
	}
	return template.URL(encodePairs(pairs)) //nolint:gosec // escaped
}

// HasStatus reports whether the search names a status.
func (s search) HasStatus(status outcome.Status) bool {
	return slices.Contains(strings.Split(s.Status, ","), string(status))
}

func (p *Pages) listDeliveries(r *request) (answer, error) {
	q := r.URL.Query()
	s := readSelection(q)
	cursor, _ := strconv.ParseInt(q.Get("cursor"), 10, 64)
	list, err := p.Operator.ListDeliveries(r.Context(), s, max(cursor, 0), pageRows)
	if err != nil {
		return answer{}, err
	}
	page := deliveriesPage{Search: newSearch(s), First: cursor <= 0,
		Searching: s != operator.Selection{}, Statuses: operator.AllStatuses(), Reasons: outcome.Reasons(),
		Kinds: job.DeliveredKinds()}
	if page.Table, err = p.makeTable(r.Context(), list.Deliveries); err != nil {
		return answer{}, err
	}
	if list.Next != "" {
		page.NextURL = "/deliveries?" + strings.TrimPrefix(string(page.Search.Query())+"&cursor="+list.Next, "&")
	}
	return answer{page: "deliveries", title: "Deliveries", content: page}, nil
}

// groupsPage shows groups of deliveries that failed, wait or are held for the same reason and with the same sentence.
type groupsPage struct {
	operator.GroupList
	EndedSince string
}

// Search returns the search of a group's deliveries.
func (p groupsPage) Search(g records.Group) search { return newSearch(p.SelectGroup(g)) }

func (p *Pages) listGroups(r *request) (answer, error) {
	since := cmp.Or(strings.TrimSpace(r.URL.Query().Get("ended_since")), "24h")
	list, err := p.Operator.ShowGroups(r.Context(), strings.Join(r.URL.Query()["status"], ","), since)
	return answer{page: "groups", title: "Causes", content: groupsPage{list, since}}, err
}

// findPage lists the matches of a search over everything.
type findPage struct {
	Asked   string
	Matches []operator.Match
}

// matchURL returns the address of the page of a match.
func matchURL(m operator.Match) string {
	switch m.Kind {
	case "transaction":
		return "/deliveries?" + encodePairs([]string{"transaction", m.Target})
	case "client":
		return "/clients/" + url.PathEscape(m.Target)
	case "agent":
		return "/agents/" + m.Target + "?" + encodePairs([]string{"registry", m.Registry})
	}
	return "/deliveries/" + url.PathEscape(m.Target)
}

// findText redirects to the page of the only match, or lists several matches.
func (p *Pages) findText(r *request) (answer, error) {
	asked := r.URL.Query().Get("q")
	list, err := p.Operator.Find(r.Context(), asked)
	if err != nil {
		return answer{}, err
	}
	if len(list.Matches) == 1 {
		return answer{location: matchURL(list.Matches[0])}, nil
	}
	return answer{page: "find", title: "Found", content: findPage{asked, list.Matches}}, nil
}

// movePage counts the deliveries that a search would change, and asks for confirmation.
type movePage struct {
	Action string // replay or cancel
	Search search
	Report *operator.MoveReport
}

// chooseMove returns the function for an action.
func (p *Pages) chooseMove(action string) (operator.Mover, error) {
	switch action {
	case "replay":
		return p.Operator.Replay, nil
	case "cancel":
		return p.Operator.Cancel, nil
	}
	return nil, operator.NewMisuse("choose replay or cancel")
}

func (p *Pages) countMove(r *request) (answer, error) {
	q := r.URL.Query()
	page := movePage{Action: q.Get("action"), Search: newSearch(readSelection(q))}
	move, err := p.chooseMove(page.Action)
	if err != nil {
		return answer{}, err
	}
	page.Report, err = move(r.Context(), operator.MoveRequest{Selection: page.Search.Selection, DryRun: true,
		Actor: r.visitor.Name})
	return answer{page: "move", title: strings.ToUpper(page.Action[:1]) + page.Action[1:] + " deliveries",
		content: page}, err
}

// moveMany changes the selected deliveries. The request lasts until all are changed; the audit row has the result.
func (p *Pages) moveMany(r *request) (answer, error) {
	move, err := p.chooseMove(r.PostFormValue("action"))
	if err != nil {
		return answer{}, err
	}
	rate, err := strconv.Atoi(r.PostFormValue("rate"))
	if err != nil {
		return answer{}, operator.NewMisuse("the rate is not a whole number")
	}
	_ = http.NewResponseController(r.w).SetWriteDeadline(time.Time{})
	report, err := move(r.Context(), operator.MoveRequest{Selection: readSelection(r.PostForm), Rate: rate, Yes: true,
		Actor: r.visitor.Name})
	var left *operator.LeftError
	if err != nil && !errors.As(err, &left) {
		return answer{}, err
	}
	if report.Audit == 0 {
		return answer{location: "/deliveries?" + string(newSearch(readSelection(r.PostForm)).Query())}, nil
	}
	return answer{location: fmt.Sprintf("/audit#audit-%d", report.Audit)}, nil
}
