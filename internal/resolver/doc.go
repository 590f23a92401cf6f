// Package resolver finds an agent's MCP endpoint: it reads the tokenURI on chain, fetches the registration document,
// and chooses an entry in that document. docs/design/content.md describes it.
//
// Invariants:
//   - The document is untrusted. The resolver dials nothing itself: internal/ipfs fetches the bytes, and the caller
//     dials an endpoint through netguard.
//   - A command from a document is used only if the operator listed exactly this command with all its arguments.
//   - An agent without an endpoint (SkipError) is a regular result. It is cheap and cached, because it is the most
//     common one. If something could not be determined, the result is an error of the chain or of the content, which is
//     not cached.
//   - A cached outcome is not used for an agent whose epoch was raised since.
//   - Only the endpoint's side binds an agent to its endpoint: its origin serves the agent's document, or its domain
//     serves a list that contains the agent. The claims of a document elsewhere do not count, nor does an answer from
//     another origin after a redirect.
//   - During one resolution, at most one domain is asked for its list: that of the endpoint, and only if the endpoint's
//     origin did not serve the document. The list decides whether the endpoint may be called, never which one it is.
//   - The cache contains no documents. If a document's server reports that it is unchanged, the data parsed from it is
//     used again, but the binding is checked again.
//
// Package erc8004 parses documents and package ipfs fetches them. Package delivery limits agents without a binding
// and handles credentials.
package resolver
