// Package canary finds secrets where they must not be: in logs, pages, databases and files.
//
// It contains Needles, which are made from secrets, and the search for them. The test of the whole system in package
// trial decides where to search and where the secrets are used.
//
// A secret counts as found if eight consecutive characters of it occur, so that truncated, wrapped and partly masked
// secrets are found. The search also covers the forms into which programs transform text unintentionally: base64 at
// each of its three alignments, hexadecimal, percent, HTML, JSON and Go escapes, UTF-16, and the lists of numbers
// that %v prints for bytes. Encrypted, hashed and compressed secrets are not found.
//
// Invariants: The search time per byte does not depend on the number of secrets (about a nanosecond). There are no
// false findings. A search without findings proves something only together with a control: a planted text that must
// be found.
package canary
