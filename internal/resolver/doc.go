// Package resolver finds an agent's MCP endpoint: tokenURI on chain, the registration document it names, the entry in
// that document.
//
// Invariants:
//   - The document is a stranger's. The resolver dials nothing itself: bytes come through internal/ipfs, and an
//     endpoint is only handed on, to be dialled through netguard by whoever calls it.
//   - A command is never taken from a document unless the operator listed exactly it with all its arguments.
//   - "There is nothing to call" (SkipError) is a result like any other, cheap and cached, for it is the commonest one;
//     what could not be found out is an error of the chain or of the content and is not cached.
//   - An entry of the cache serves no agent whose epoch was raised since.
//   - Only the endpoint's side binds an agent to its endpoint: its own origin serves the agent's document, or its
//     domain a list that names the agent. What a document elsewhere says of itself binds nothing, nor does an answer
//     that another origin gave after a redirect.
//   - A domain is asked for its list of agents at most once in one resolving, of the origin that is about to be called
//     and no other, and only where that did not serve the document. What it answers says who may be called, never what.
//   - The cache holds no document. One that its server says is unchanged is believed for another while, in the words
//     that were read from it; who is bound to whom is asked again.
//
// What lives elsewhere: the shapes of documents (erc8004), which bytes a URI names (ipfs), what agents without a
// binding get (delivery), policy on credentials (delivery).
package resolver
