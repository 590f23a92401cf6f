// Package arguments makes the arguments of a tool call fit the tool's input schema, which a stranger wrote.
//
//   - sanitize.go removes characters that make text read differently from what it is;
//   - schema.go compiles a schema once, within bounds of size and depth, and validates against it; budget.go bounds the
//     work of a validation, patterns.go the regular expressions;
//   - walker.go asks a compiled schema what it says about one property; fitter.go adapts values to that;
//   - problems.go words what does not fit.
//
// Invariants: no schema makes this process load a document, work for longer than maxValidation, or keep more memory
// than Schema.Size tells; every error is a *SchemaError; arguments are never changed in place.
package arguments
