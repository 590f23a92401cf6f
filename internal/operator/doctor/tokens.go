package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
)

// issuer is an authorization server.
type issuer struct {
	name string
	own  bool // it is the agent's own origin, so it may use the discovery from before RFC 9728
}

// tokenCheckup collects the results about stored tokens.
type tokenCheckup struct {
	stored                int
	expired, soon, sealed []string // names of tokens; sealed: the keyset lacks their key
	keys                  []string // ids of those keys
}

// checkTokens reports stored tokens that are expired, expire soon or cannot be opened. It reports nothing if no tokens
// are stored.
func (d *doctor) checkTokens(ctx context.Context) []Finding {
	if !d.migrated {
		return nil
	}
	keys, err := d.Backend.Keyset()
	if err != nil {
		keys = nil // checkKeyset reports the error
	}
	var found tokenCheckup
	issuers := map[issuer]int{}
	now := time.Now()
	err = try(ctx, func(ctx context.Context) error {
		return operator.EachToken(ctx, d.store.TokensAfter, func(t records.Token) error {
			found.add(t, keys, now)
			if t.OAuth() {
				issuers[issuer{t.Issuer, t.Issuer == string(t.Origin)}]++
			}
			return nil
		})
	})
	if err != nil {
		return reportFailure("%v", err)
	}

	d.issuers = issuers
	return found.judgeTokens()
}

func (c *tokenCheckup) add(t records.Token, keys *secret.Keyset, now time.Time) {
	c.stored++
	shown := operator.DescribeToken(t, now)
	name := fmt.Sprintf("%s for %s%s", shown.Agent, text.Printable(text.Shorten(t.URL())), shown.Grant())
	if id, ok := secret.KeyID(t.Ciphertext); keys != nil && (!ok || !keys.Has(id)) {
		c.sealed = append(c.sealed, name)
		if key := fmt.Sprint(id); ok && !slices.Contains(c.keys, key) {
			c.keys = append(c.keys, key)
		}
	}
	switch shown.State {
	case operator.TokenExpired:
		c.expired = append(c.expired, name)
	case operator.TokenSoon:
		c.soon = append(c.soon, name+" at "+t.ExpiresAt.UTC().Format(time.RFC3339))
	}
}

func (c *tokenCheckup) judgeTokens() []Finding {
	var faults []string // they hold deliveries now
	if n := len(c.expired); n > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d %s deliveries: %s", n, c.stored,
			text.Plural(n, "has expired and holds", "have expired and hold"), firstFew(c.expired)))
	}
	if n := len(c.sealed); n > 0 {
		key := "an unknown key"
		if c.keys != nil {
			key = "key " + firstFew(c.keys)
		}
		faults = append(faults, fmt.Sprintf("%d of %d %s sealed with %s, which is not in HERALD_KEYSET, so put the "+
			"keyset back that has it: %s", n, c.stored, text.Plural(n, "is", "are"), key, firstFew(c.sealed)))
	}
	switch {
	case faults != nil:
		return reportFailure("%s: `worker token set` stores another one, `worker token login` where a person has to",
			strings.Join(faults, "; "))
	case len(c.soon) > 0:
		return reportWarning("%s stored; %s within 7 days: %s", text.Count(c.stored, "is", "are"),
			text.Count(len(c.soon), "expires", "expire"), firstFew(c.soon))
	case c.stored > 0:
		return reportOK("%s stored, none expires within 7 days", text.Count(c.stored, "is", "are"))
	}
	return nil
}

// firstFew joins the first few names and counts the others.
func firstFew(names []string) string { return text.JoinFirst(names, 3, ", ") }

// maxAsked bounds the authorization servers that the doctor asks.
const maxAsked = 8

// askIssuers fetches the metadata of the authorization servers of stored OAuth credentials, as a renewal does. A server
// that does not answer now is a warning: no delivery is held yet, and it may answer before a token expires.
func (d *doctor) askIssuers(ctx context.Context) (findings []Finding) {
	if len(d.issuers) == 0 {
		return nil
	}
	content, err := d.Backend.OpenContent()
	if err != nil {
		return reportFailure("%v", err)
	}
	defer content.Close()
	all := slices.SortedFunc(maps.Keys(d.issuers), func(a, b issuer) int { return cmp.Compare(a.name, b.name) })
	for _, i := range all[:min(len(all), maxAsked)] {
		_, err := ask(ctx, func(ctx context.Context) (oauth.Server, error) {
			return content.OAuth.ServerOf(ctx, oauth.Resource{Issuers: []string{i.name}, Legacy: i.own}, i.name)
		})
		name, n := text.Printable(text.Shorten(i.name)), d.issuers[i]
		say := reportFailure
		switch {
		case err == nil:
			findings = append(findings,
				reportOK("%s answers; %s there", name, text.Count(n, "stored credential gets its tokens",
					"stored credentials get their tokens"))...)
			continue
		case oauth.MayAnswerLater(err):
			say = reportWarning
		}
		findings = append(findings,
			say("%s, which gives the tokens of %s: %v", name,
				text.Count(n, "stored credential", "stored credentials"), err)...)
	}
	if n := len(all) - maxAsked; n > 0 {
		findings = append(findings, reportOK("%s not asked",
			text.Count(n, "more authorization server was", "more authorization servers were"))...)
	}
	return findings
}
