// Package strictjson parses JSON that must have exactly one interpretation: jobs, the servers file, OAuth documents,
// registrations and feedback files. encoding/json accepts input that parsers interpret differently. This package
// detects it and reports the location of the first fault: a duplicate name, nesting that is too deep, numbers out of
// range, or strings that had to be repaired.
//
// Parse builds a tree of Values. The caller checks the content, with Object.Get and Object.FirstUnknown, and the size.
// decode.Modest bounds the tree of an untrusted document before it is built.
//
// Invariants: members keep the order of the document. A Value knows its path, which is bounded and contains untrusted
// names in escaped form.
package strictjson
