// Package strictjson reads JSON of which there may be only one reading: jobs, the servers file, OAuth documents,
// registrations and feedback files. encoding/json passes over what lets two readers disagree; this package sees it and
// names where the first fault stands: a name given twice, nesting beyond a depth, numbers beyond a range, strings that
// had to be repaired.
//
// Parse builds a tree of Values. What a document may hold is its caller's business, with Object.Get and
// Object.FirstUnknown; so is how large it may be, and decode.Modest bounds what a stranger's bytes become before a tree
// is built.
//
// Invariants: members keep the order of the document; a Value knows its path, which is bounded and shows foreign names
// escaped.
package strictjson
