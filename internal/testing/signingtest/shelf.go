// Package signingtest keeps signing keys in memory, for tests of signing and verification.
package signingtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store/records"
)

// Shelf is a signing.Records in memory.
type Shelf struct {
	mu   sync.Mutex
	keys []records.SigningKey
	err  error
}

// Put replaces the keys, the youngest first. err is returned by later reads.
func (s *Shelf) Put(err error, keys ...records.SigningKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.err = keys, err
}

// SigningKeys implements signing.Records.
func (s *Shelf) SigningKeys(context.Context) ([]records.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys), s.err
}

// AddFirstSigningKey implements signing.Records.
func (s *Shelf) AddFirstSigningKey(_ context.Context, k records.SigningKey) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 || s.err != nil {
		return false, s.err
	}
	k.ActivatesAt = time.Now()
	s.keys = []records.SigningKey{k}
	return true, nil
}
