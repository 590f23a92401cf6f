// Package decode bounds what strangers' bytes become when they are decoded. Two MiB of JSON can be a million values,
// each of which costs a hundred bytes of memory; a limit on the bytes alone does not bound that.
//
// There are two bounds, and a decoder of strangers' bytes asks for both:
//
//   - per document, Modest: JSON is counted before a tree is built of it, without allocating anything;
//   - for the process, Budget: so many bytes are decoded at a time, the rest waits.
//
// Invariants: nobody waits for the network, or for anything else of a stranger's, while holding a part of a Budget; a
// document that is shorter than freeBytes never waits.
package decode
