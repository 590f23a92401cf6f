// Package arguments fits the arguments of a tool call to the tool's input schema, which an untrusted party wrote.
//
//   - sanitize.go removes characters that make text look different from its content;
//   - schema.go compiles a schema once, with bounds on size and depth, and validates against it; budget.go bounds the
//     work of a validation, patterns.go the regular expressions;
//   - walker.go finds the constraints of a compiled schema on one property; fitter.go adapts values accordingly;
//   - problems.go describes the arguments that do not fit.
//
// Invariants: no schema makes this process load a document, work for longer than maxValidation, or keep more memory
// than Schema.Size reports. Every error is a *SchemaError. Arguments are never changed in place.
package arguments
