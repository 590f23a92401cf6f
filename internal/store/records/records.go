// Package records keeps the operator's records in Postgres: credentials of agents, signing keys, API tokens, the audit,
// alerts, agents with their policies, and running workers. It also reads lists of deliveries and events for the pages,
// the API and the commands.
//
// The deliveries themselves are in the ledger, package store. A change that also releases or disables deliveries, such
// as SetToken, is made in a transaction of the ledger (store.Store.ReleaseAfter).
//
// Invariants:
//   - Sealed means encrypted with the worker's keyset; to reseal is to encrypt the same value with a newer key. A
//     ciphertext is replaced only if it has not changed since it was read.
//   - One worker at a time renews an access token: it leases the renewal and saves the token under the renewal's
//     number. A token that was obtained with a replaced credential is not saved.
//   - Each change of an agent or of its deliveries is reported in one alert at most (LookForNews).
//   - Every call ends: a context without a deadline gets one.
package records

import (
	"embed"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

var statements = postgres.ReadStatements(files)

// Store reads and writes the operator's records. Safe for concurrent use.
type Store struct {
	db     *postgres.Pool
	ledger *store.Store // releases deliveries, and reads one delivery
}

// New returns the records of the database that has the ledger. They use the ledger's connections until it is closed.
func New(ledger *store.Store) *Store { return &Store{db: ledger.Pool, ledger: ledger} }

// collectMap returns the second column of the rows by the first.
func collectMap[K comparable, V any](rows pgx.Rows) (map[K]V, error) {
	values := make(map[K]V)
	var key K
	var value V
	_, err := pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		values[key] = value
		return nil
	})
	return values, err
}
