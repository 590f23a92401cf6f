package signing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/records"
)

// Records stores the keys.
type Records interface {
	SigningKeys(ctx context.Context) ([]records.SigningKey, error)
	AddFirstSigningKey(ctx context.Context, k records.SigningKey) (added bool, err error)
}

// Config configures a Ring.
type Config struct {
	// PublicURL (HERALD_PUBLIC_URL) is the origin at which agents find the directory of keys. Required.
	PublicURL string
	Records   Records
	Keys      *secret.Keyset // encrypts the keys of Records
	// Refresh is the interval at which Run reads the keys again. Default 30 s.
	Refresh time.Duration
	// Logger discards by default. Clock is time.Now by default.
	Logger *slog.Logger
	Clock  func() time.Time
}

// Ring holds the keys of an installation.
type Ring struct {
	cfg  Config
	keys atomic.Pointer[[]*key] // the youngest first; some may have retired since Load
}

// ErrNoKey reports that no key can sign, so that the request was not sent.
var ErrNoKey = errors.New("no signing key can be used, so the request was not sent: " +
	"put the keyset back that has its key, or make one with `worker signing-key rotate`")

// New returns a Ring without keys. Call Load before Sign.
func New(cfg Config) (*Ring, error) {
	if cfg.PublicURL == "" || cfg.Records == nil || cfg.Keys == nil {
		return nil, errors.New("signing: PublicURL, Records and Keys are required")
	}
	cfg.Refresh = cmp.Or(cfg.Refresh, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Ring{cfg: cfg}, nil
}

// Load reads the keys from the ledger. If the ledger is empty, it creates the first key. It returns ErrNoKey if there
// are keys but none can sign.
func (r *Ring) Load(ctx context.Context) error {
	stored, err := r.cfg.Records.SigningKeys(ctx)
	if err == nil && len(stored) == 0 {
		stored, err = r.addFirst(ctx)
	}
	if err != nil {
		return err
	}
	var keys []*key
	var faults []error
	for _, s := range stored {
		k, err := openKey(r.cfg.Keys, s)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		keys = append(keys, k)
	}
	r.keys.Store(&keys)
	if r.currentKey() == nil {
		return errors.Join(append(faults, ErrNoKey)...)
	}
	for _, err := range faults {
		r.cfg.Logger.Warn("a signing key cannot be used", "error", err)
	}
	return nil
}

func (r *Ring) addFirst(ctx context.Context) ([]records.SigningKey, error) {
	first, err := NewKey(r.cfg.Keys)
	if err != nil {
		return nil, err
	}
	added, err := r.cfg.Records.AddFirstSigningKey(ctx, first)
	if err != nil {
		return nil, fmt.Errorf("make the first signing key: %w", err)
	}
	if added {
		r.cfg.Logger.Info("made the first signing key", "key", first.ID)
	}
	return r.cfg.Records.SigningKeys(ctx)
}

// Run reads the keys regularly until ctx ends. While Postgres is unavailable the keys do not change.
func (r *Ring) Run(ctx context.Context) {
	for range loop.Every(ctx, r.cfg.Refresh) {
		if err := r.Load(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("the signing keys could not be read anew", "error", err)
		}
	}
}

// publishedKeys returns the keys that the directory currently contains.
func (r *Ring) publishedKeys() []*key {
	known := r.keys.Load()
	if known == nil {
		return nil
	}
	now := r.cfg.Clock()
	var list []*key
	for _, k := range *known {
		if k.retires == nil || now.Before(*k.retires) {
			list = append(list, k)
		}
	}
	return list
}

// currentKey returns the key that signs: the youngest one that is active, which means that it has been published for
// long enough. If no key is active yet, for example because the clock of Postgres is ahead, it returns the oldest.
func (r *Ring) currentKey() (oldest *key) {
	known := r.keys.Load()
	if known == nil {
		return nil
	}
	now := r.cfg.Clock()
	for _, k := range *known {
		if k.retires != nil && !now.Before(*k.retires) {
			continue
		}
		if !now.Before(k.activates) {
			return k
		}
		oldest = k
	}
	return oldest
}
