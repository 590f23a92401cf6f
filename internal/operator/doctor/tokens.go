package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// checkTokens looks for stored tokens that are not sent any more, or will not be before long. Without tokens it says
// nothing.
func (d *doctor) checkTokens(ctx context.Context, st *store.Store) {
	keys, err := d.Backend.Keyset()
	if err != nil {
		keys = nil // its own line says so
	}
	var t tokenCheckup
	err = d.runBounded(ctx, func(ctx context.Context) error { return t.readTokens(ctx, st, keys) })
	switch {
	case err != nil:
		d.add("tokens", err, "")
	case t.stored > 0 && t.describeFaults() == nil && len(t.soon) > 0:
		d.warn("tokens", t.describe())
		d.askIssuers(ctx, t.issuers)
	case t.stored > 0:
		d.add("tokens", t.describeFaults(), t.describe())
		d.askIssuers(ctx, t.issuers)
	}
}

// maxAsked is how many authorization servers the doctor asks.
const maxAsked = 8

// askIssuers asks the authorization servers of stored OAuth credentials for their metadata, as a renewal does.
func (d *doctor) askIssuers(ctx context.Context, of map[issuerOf]int) {
	if len(of) == 0 {
		return
	}
	content, err := d.Backend.OpenContent()
	if err != nil {
		d.add("oauth", err, "")
		return
	}
	defer content.Close()
	all := slices.SortedFunc(maps.Keys(of), func(a, b issuerOf) int { return strings.Compare(a.name, b.name) })
	for _, i := range all[:min(len(all), maxAsked)] {
		err := d.runBounded(ctx, func(ctx context.Context) error {
			_, err := content.OAuth.ServerOf(ctx, oauth.Resource{Issuers: []string{i.name}, Legacy: i.origin != ""},
				i.name)
			return err
		})
		text, away, err := describeIssuer(i.name, of[i], err)
		if away {
			d.warn("oauth", text)
			continue
		}
		d.add("oauth", err, text)
	}
	if n := len(all) - maxAsked; n > 0 {
		d.add("oauth", nil, fmt.Sprintf("%d more authorization servers were not asked", n))
	}
}

// describeIssuer is about an authorization server that was asked. That it is away holds nothing yet, and may have
// passed when a token ends.
func describeIssuer(name string, stored int, err error) (line string, isAway bool, _ error) {
	name = text.Printable(text.Shorten(name))
	var away *oauth.UnavailableError
	switch {
	case err == nil:
		return fmt.Sprintf("%s answers; %d stored credentials get their tokens there", name, stored), false, nil
	case errors.As(err, &away) && !isForbidden(err):
		return fmt.Sprintf("%s, which gives the tokens of %d stored credentials: %v", name, stored, err), true, nil
	}
	return "", false, fmt.Errorf("%s, which gives the tokens of %d stored credentials: %w", name, stored, err)
}

// issuerOf is an authorization server; origin only when it is the agent's own.
type issuerOf struct{ name, origin string }

// tokenCheckup is what was found.
type tokenCheckup struct {
	stored                int
	expired, soon, sealed []string // whose; sealed with a key that is not there
	keys                  []uint32 // which those are
	issuers               map[issuerOf]int
}

func (t *tokenCheckup) readTokens(ctx context.Context, st *store.Store, keys *secret.Keyset) error {
	now := time.Now()
	return eachToken(ctx, st.TokensAfter, func(token store.Token) error {
		t.stored++
		name := fmt.Sprintf("%d:%s for %s%s", token.ChainID, token.ID, text.Printable(text.Shorten(token.URL())),
			describeGrant(token.Scheme, token.Issuer))
		t.countIssuer(token)
		if id, ok := secret.KeyID(token.Ciphertext); keys != nil && (!ok || !keys.Has(id)) {
			t.sealed = append(t.sealed, name)
			if ok && !slices.Contains(t.keys, id) {
				t.keys = append(t.keys, id)
			}
		}
		switch tokenState(token, now) {
		case TokenExpired:
			t.expired = append(t.expired, name)
		case tokenSoon:
			t.soon = append(t.soon, name+" at "+token.ExpiresAt.UTC().Format(time.RFC3339))
		}
		return nil
	})
}

// countIssuer counts who gives tokens.
func (t *tokenCheckup) countIssuer(token store.Token) {
	if !token.OAuth() {
		return
	}
	if t.issuers == nil {
		t.issuers = map[issuerOf]int{}
	}
	i := issuerOf{name: token.Issuer}
	if token.Issuer == string(token.Origin) {
		i.origin = string(token.Origin)
	}
	t.issuers[i]++
}

// describeFaults is what holds deliveries now.
func (t *tokenCheckup) describeFaults() error {
	var said []string
	if len(t.expired) > 0 {
		said = append(said, fmt.Sprintf("%d of %d have expired and hold deliveries: %s", len(t.expired), t.stored,
			firstFew(t.expired)))
	}
	if len(t.sealed) > 0 {
		said = append(said, fmt.Sprintf("%d of %d are sealed with %s, which is not in HERALD_KEYSET, so put the keyset back that has it: %s", len(t.sealed), t.stored,
			t.describeKeys(), firstFew(t.sealed)))
	}
	if said == nil {
		return nil
	}
	return errors.New(strings.Join(said, "; ") +
		": `worker token set` stores another one, `worker token login` where a person has to")
}

// describeKeys names the keys that the keyset lacks.
func (t *tokenCheckup) describeKeys() string {
	var ids []string
	for _, id := range t.keys {
		ids = append(ids, fmt.Sprint(id))
	}
	if ids == nil {
		return "a key that cannot be told"
	}
	return "key " + firstFew(ids)
}

func (t *tokenCheckup) describe() string {
	if len(t.soon) == 0 {
		return fmt.Sprintf("%d are stored, none expires within 7 days", t.stored)
	}
	return fmt.Sprintf("%d are stored; %d expire within 7 days: %s", t.stored, len(t.soon), firstFew(t.soon))
}

// firstFew names a few.
func firstFew(names []string) string {
	const most = 3
	out := strings.Join(names[:min(len(names), most)], ", ")
	if n := len(names) - most; n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}
