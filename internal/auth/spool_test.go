package auth

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// spooled is an in-memory spool of renewals, in the role of Redis.
type spooled struct {
	mu    sync.Mutex
	texts map[string][]byte
	err   error
	asked int
}

func (s *spooled) Put(_ context.Context, key string, sealed []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.texts[key] = sealed
	}
	return s.err
}

func (s *spooled) Get(_ context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.texts[key], s.err
}

func (s *spooled) Delete(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		delete(s.texts, key)
	}
	return s.err
}

// newSpoolingWorker returns a worker that uses Redis.
func (w *renewing) newSpoolingWorker(s *spooled) *Authorizer {
	r := w.newWorker()
	r.Spool = s
	return r
}

// asksWith checks the refresh token of the last token request.
func (w *renewing) asksWith(t testing.TB, want string) {
	t.Helper()
	heraldtest.Equal(t, "it asks with", w.asked[len(w.asked)-1].RefreshToken.Reveal(), want)
}

// TestSpooledRenewal checks that a refresh token that Postgres could not store is read from Redis by the next worker
// that renews, after the process that obtained it has died. If Redis is unavailable too, the process keeps the token in
// memory.
func TestSpooledRenewal(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, loginOf("refresh-0"))
	w.rotate = true
	redis := &spooled{texts: map[string][]byte{}}
	w.err = errors.New("Postgres is away")
	dead := w.newSpoolingWorker(redis)
	w.wantSent(t, dead, w.tokenRequest(), "access-1", 1)
	if len(redis.texts) != 1 || !strings.Contains(w.log.String(), "Redis keeps it, sealed") {
		t.Fatalf("Redis has %d: %s", len(redis.texts), w.log.String())
	}
	for _, text := range redis.texts {
		heraldtest.Lacks(t, "the spooled text", string(text), "refresh-1", "access-1")
	}
	dead.Flush(t.Context())
	heraldtest.Lacks(t, "the log", w.log.String(), "is lost with this process\"")
	w.err = nil
	w.Advance(renewLease) // which the dead one did not give back
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-1", 1)
	heraldtest.Equal(t, "renewals in Redis", len(redis.texts), 0)
	w.Advance(time.Hour)
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-2", 2)
	w.asksWith(t, "refresh-1")

	// The spooled access token has expired, but the spooled refresh token is used.
	w.err = errors.New("Postgres is away")
	w.Advance(time.Hour)
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-3", 3)
	w.err = nil
	w.Advance(time.Hour)
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-4", 4)
	w.asksWith(t, "refresh-3")

	// The process that has it is alive, and stores it itself.
	w.Advance(time.Hour)
	w.err = errors.New("Postgres is away")
	alive := w.newSpoolingWorker(redis)
	w.wantSent(t, alive, w.tokenRequest(), "access-5", 5)
	w.err = nil
	w.wantSent(t, alive, w.tokenRequest(), "access-5", 5)
	heraldtest.Equal(t, "renewals in Redis", len(redis.texts), 0)

	// Both are away, and then only one: Redis has it before the process ends.
	w.Advance(time.Hour)
	w.err, redis.err = errors.New("Postgres is away"), errors.New("Redis is away")
	alive = w.newWorker()
	w.wantSent(t, alive, w.tokenRequest(), "access-6", 6)
	alive = w.newSpoolingWorker(redis)
	w.replaceCredential(loginOf("refresh-9"))
	redis.err = nil
	w.err = nil
	w.wantSent(t, alive, w.tokenRequest(), "access-7", 7)
	w.Advance(time.Hour)
	w.err, redis.err = errors.New("Postgres is away"), nil
	gone := errors.New("Redis is away")
	w.before = func() { redis.err = gone }
	w.wantSent(t, alive, w.tokenRequest(), "access-8", 8)
	w.before = nil
	if len(redis.texts) != 0 || !strings.Contains(w.log.String(), "neither Postgres nor Redis accepts a renewed refresh token; this process keeps it in memory") {
		t.Errorf("%d, %s", len(redis.texts), w.log.String())
	}
	redis.err = nil
	w.wantSent(t, alive, w.tokenRequest(), "access-8", 8)
	heraldtest.Equal(t, "renewals in Redis", len(redis.texts), 1)
	w.err = nil
	w.Advance(2 * time.Hour)
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-9", 9)
	w.asksWith(t, "refresh-8")
	heraldtest.Lacks(t, "the log", w.log.String(), "refresh-", "access-")
}

// TestSpooledOfItsGeneration checks that a spooled renewal is not used if it is older than the row, belongs to another
// row, or is sealed with a missing key. If Redis does not answer, the authorization server is not asked.
func TestSpooledOfItsGeneration(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, loginOf("refresh-0"))
	w.rotate = true
	redis := &spooled{texts: map[string][]byte{}}
	w.err = errors.New("Postgres is away")
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-1", 1)
	w.err = nil
	old := w.token
	key := spoolKey(spoolBinding(old, secret.New("refresh-0")))
	text := redis.texts[key]
	heraldtest.Equal(t, "it is at its key", text != nil, true)
	for name, change := range map[string]func(*records.Token){
		"another agent":  func(t *records.Token) { t.ID = "8" },
		"another origin": func(t *records.Token) { t.Origin = "https://evil.example" },
		"another issuer": func(t *records.Token) { t.Issuer = "https://evil.example" },
		"stored anew":    func(t *records.Token) { t.UpdatedAt = t.UpdatedAt.Add(time.Microsecond) },
	} {
		other := old
		change(&other)
		moved := &spooled{texts: map[string][]byte{spoolKey(spoolBinding(other, secret.New("refresh-0"))): text}}
		if _, _, err := readSpooled(t.Context(), moved, w.keys, other, loginOf("refresh-0")); !errors.As(err, new(*secret.DecryptError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found, _, err := readSpooled(t.Context(), redis, w.keys, old, loginOf("refresh-1")); found != nil || err != nil {
		t.Errorf("of a refresh token that was replaced already: %v, %v", found, err)
	}
	if found, _, err := readSpooled(t.Context(), redis, w.keys, old, loginOf("refresh-0")); found == nil || err != nil {
		t.Errorf("of its own row: %v, %v", found, err)
	}
	last := must(LatestCredential(t.Context(), redis, w.keys, old))
	heraldtest.Equal(t, "the last one", last.RefreshToken.Reveal(), "refresh-1")

	// After a new login, the spooled renewal is ignored.
	w.replaceCredential(loginOf("refresh-7"))
	w.Advance(renewLease)
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-2", 2)
	w.asksWith(t, "refresh-7")

	// Redis does not answer: the refresh token that is stored may have been replaced.
	w.Advance(time.Hour)
	redis.err = errors.New("Redis is away")
	w.wantFailure(t, w.newSpoolingWorker(redis), w.tokenRequest(), outcome.InternalError, "whether a newer refresh token waits in Redis is not known", 2)
	redis.err = nil
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-3", 3)

	// A client's credential does not rotate and needs no Redis.
	asked := redis.asked
	w.replaceCredential(clientOf("a"))
	redis.err = errors.New("Redis is away")
	w.wantSent(t, w.newSpoolingWorker(redis), w.tokenRequest(), "access-4", 4)
	heraldtest.Equal(t, "requests to Redis for a client", redis.asked, asked)
	latest := must(LatestCredential(t.Context(), nil, w.keys, w.token))
	heraldtest.Equal(t, "the grant", latest.Grant, oauth.GrantClientCredentials)
}
