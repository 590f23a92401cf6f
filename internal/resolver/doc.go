// Package resolver finds an agent's MCP endpoint: it reads the tokenURI from the chain, fetches the registration
// document at that URI, and chooses an entry of that document. This is a resolution; its result is an
// endpoint or an error. docs/design/content.md describes it.
//
// Invariants:
//   - The document is untrusted. The resolver dials nothing itself: internal/ipfs fetches the bytes, and the caller
//     dials an endpoint through netguard.
//   - A command from a document is used only if the operator listed exactly this command with all its arguments.
//   - The result "the agent has no endpoint" (SkipError) is cached, because it is the most common one. Temporary
//     errors of the chain or of fetching are not cached.
//   - A result that was resolved for a lower epoch of the agent is not used.
//   - Only the endpoint's origin can bind the endpoint to an agent: it serves the agent's registration document, or a
//     list that contains the agent (the domain's list). A document from another origin does not count, nor does a list
//     after a redirect to another origin.
//   - A resolution fetches at most one domain's list: that of the chosen endpoint, and only if the endpoint's origin
//     did not serve the document. The list decides whether the endpoint may be called. It does not affect the choice.
//   - The cache contains no documents, only the data parsed from them. If a document's server reports that the document
//     is unchanged, that data is used again, but the binding is checked again.
//
// Package erc8004 parses documents and package ipfs fetches them. Package delivery limits the calls to unbound agents.
// Package auth selects credentials.
package resolver
