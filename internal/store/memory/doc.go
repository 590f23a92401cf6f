// Package memory is a model of the Postgres store (internal/store): it keeps deliveries in a map, with the same rules
// for claims, fences, leases, dispatch and waits.
//
// It is for tests only and is never linked into a program: property tests need thousands of databases and a clock that
// they can move. It implements the rules in the headers of internal/store/sql, with one mutex in place of Postgres' row
// locks. The suite internal/store/storetest runs on both stores and checks that they behave alike.
//
// It keeps only the state on which the rules depend, so it has no totals and no results. A key, once used, is never
// given to another event.
package memory
