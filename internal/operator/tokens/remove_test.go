package tokens

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// removal is the Backend and the Person of a Remove. Its spool has no entries.
type removal struct {
	operator.Backend
	auth.RenewalSpool
	st     *store.Store
	keys   *secret.Keyset
	client *oauth.Client
	told   func(line string)
	reads  func() // called while Remove reads the spool
}

func (r *removal) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Ledger: r.st, Records: records.New(r.st), Spool: r, Close: func() {}}, nil
}
func (r *removal) Keyset() (*secret.Keyset, error) { return r.keys, nil }
func (r *removal) OpenContent() (*operator.Content, error) {
	return &operator.Content{OAuth: r.client, Close: func() {}}, nil
}
func (r *removal) Confirm(context.Context, string) (bool, error) { return true, nil }
func (r *removal) Notify(line string)                            { r.told(line) }
func (r *removal) Get(context.Context, string) ([]byte, error) {
	r.reads()
	return nil, nil
}

// TestRemoveDuringRenewal: a worker has begun a renewal when an operator removes the login. The refresh token that the
// worker stores is revoked, and no worker renews it between its reading and the removal.
func TestRemoveDuringRenewal(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, heraldtest.Postgres(t, postgres.Migrate), 0)
	r := &removal{st: st, told: func(string) {}, reads: func() {}}
	var err error
	r.keys, err = secret.Create()
	heraldtest.Must(t, err)
	web := guardtest.Loopback(t, nil).Client(netguard.Limits{}, 0)
	t.Cleanup(web.CloseIdleConnections)
	r.client, err = oauth.New(oauth.Config{HTTP: web})
	heraldtest.Must(t, err)
	o := Tokens{operator.New(operator.Config{Settings: &config.Config{}, Backend: r, Person: r})}

	s := oauthtest.New(t, oauthtest.Options{})
	s.Register("herald", "")
	origin, err := netguard.CredentialOriginOf(s.AgentURL)
	heraldtest.Must(t, err)
	ref := operator.AgentRef{Agent: "8453:42", Registry: "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}
	agent, err := o.ParseRef(ref)
	heraldtest.Must(t, err)
	login := records.Token{Agent: agent, Origin: origin, Path: "/", Scheme: records.SchemeAuthorizationCode, Header: "Authorization",
		Issuer: s.Issuer}
	seal := func(refresh string) []byte {
		cred := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "herald", Method: oauth.MethodNone, Resource: s.AgentURL,
			RefreshToken: secret.New(refresh)}
		plain, err := cred.Marshal()
		heraldtest.Must(t, err)
		sealed, err := r.keys.Seal(plain, login.Binding())
		heraldtest.Must(t, err)
		return sealed
	}
	access := func(text string) records.Access {
		a, err := auth.SealAccess(r.keys, login, oauth.Token{Access: secret.New(text + strings.Repeat("A", 20))}, time.Now())
		heraldtest.Must(t, err)
		return *a
	}
	login.Ciphertext = seal(s.RefreshToken("herald", ""))
	first := access("access-1")
	login.Access = &first
	worker := records.New(st)
	_, _, err = worker.SetToken(t.Context(), login)
	heraldtest.Must(t, err)
	renewal, err := worker.LeaseRenewal(t.Context(), login, first.Ciphertext, time.Minute)
	if err != nil || renewal.No == 0 {
		t.Fatalf("%+v, %v", renewal, err)
	}

	newest, second := s.RefreshToken("herald", ""), access("access-2")
	r.told = func(line string) {
		heraldtest.Contains(t, "the line", line, "a worker")
		heraldtest.Must(t, worker.SaveRenewal(t.Context(), renewal, second, seal(newest)))
	}
	r.reads = func() {
		if again, err := worker.LeaseRenewal(t.Context(), login, second.Ciphertext, time.Minute); err != nil || again.No != 0 {
			t.Errorf("a worker renews the login that is being removed: %+v, %v", again, err)
		}
	}
	change, err := o.Remove(heraldtest.Within(t, 20*time.Second), ref, string(origin), "me")
	heraldtest.Must(t, err)
	var revoked []string
	for _, asked := range s.Revocations() {
		revoked = append(revoked, asked.Form.Get("token"))
	}
	heraldtest.Equal(t, "revoked", strings.Join(revoked, " "), newest+" access-2"+strings.Repeat("A", 20))
	heraldtest.Equal(t, "reported", strings.Join(change.Revocation.Revoked, " "), "refresh_token access_token")
}
