// Package signingtest keeps signing keys in memory, for tests of signing and verification.
package signingtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store"
)

// Shelf is a signing.Ledger in memory.
type Shelf struct {
	mu   sync.Mutex
	keys []store.SigningKey
	err  error
}

// Put replaces the keys, the youngest first. err is returned by later reads.
func (s *Shelf) Put(err error, keys ...store.SigningKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.err = keys, err
}

// SigningKeys implements signing.Ledger.
func (s *Shelf) SigningKeys(context.Context) ([]store.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys), s.err
}

// AddFirstSigningKey implements signing.Ledger.
func (s *Shelf) AddFirstSigningKey(_ context.Context, k store.SigningKey) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 || s.err != nil {
		return false, s.err
	}
	k.ActivatesAt = time.Now()
	s.keys = []store.SigningKey{k}
	return true, nil
}
