// Package canary finds secrets where none may be: in logs, pages, databases, files.
//
// What lives here: Needles, which are made of secrets, and the search for them. What does not: where to look, and how the secrets came
// there (that is the test of the whole system in package trial).
//
// A secret counts as found when eight of its characters stand in a row, so that a cut, wrapped or half masked one is found too; and in every
// form that programs give a text without meaning to hide it: base64 at each of its three alignments, hexadecimal, percent, HTML, JSON and Go
// escapes, UTF-16, and the lists of numbers that %v makes of bytes. Encrypted, hashed and compressed it is not found.
//
// Invariants: the search of a byte costs the same however many secrets there are (about a nanosecond); nothing is found that is not there; a
// search that finds nothing proves something only beside a control, a text that was planted and has to be found.
package canary
