// Package pages is what an operator sees in a browser: the overview, deliveries, agents, chains and the audit, rendered
// here as HTML. Every page is one question to internal/operator; changing something is a form whose answer is another
// page. Without JavaScript all of it works; with it, what is on its way refreshes by itself (htmx, embedded).
//
// What does not live here: who may see and do what, and the tokens of forms (internal/server); what a page says
// (internal/operator).
//
// Invariants: nothing is loaded from elsewhere, and no style or script is inline (Content-Security-Policy); what a
// stranger wrote is text, with its control and direction characters made visible, and folded when it is long
// (show.go); no page holds a secret.
package pages
