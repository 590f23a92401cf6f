// Package memory keeps deliveries in a map, with the semantics of the Postgres store: claims, fences, leases,
// dispatches, waits.
//
// It is for tests only (property tests that need thousands of databases, and clocks that can be moved) and is never
// linked into a program. What it does is written from the headers of internal/store/sql, one mutex for what Postgres
// does with row locks; that it does the same is what internal/store/storetest checks on both.
//
// It keeps what deciding needs: not totals, results or what an agent said. A key, once taken, is never given to another
// event.
package memory
