// Package decode bounds the memory that untrusted bytes need when they are decoded. Two MiB of JSON can contain a
// million values, each of which needs a hundred bytes; a limit on the size alone does not bound that.
//
// There are two bounds, and a decoder of untrusted bytes must apply both:
//
//   - per document, Modest: it counts JSON tokens before a tree is built, without allocating memory;
//   - per process, Budget: only a limited number of bytes is decoded at the same time; other documents wait.
//
// Invariants: no goroutine that holds a part of the process' Budget waits for the network or for an untrusted party. A
// document shorter than freeBytes never waits. Package chain/node has one more Budget for each node, for answers that
// are being read.
package decode
