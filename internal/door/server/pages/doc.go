// Package pages renders the web pages for operators: the overview, deliveries, agents, chains and the audit. Every page
// shows data of package operator. Changes are forms that lead to another page. All pages work without JavaScript;
// with it (htmx, embedded) lists and deliveries in progress refresh by themselves.
//
// Package server authenticates visitors and issues form tokens, and package operator provides the content of pages.
//
// Invariants: pages load nothing from other servers and have no inline style or script (Content-Security-Policy). A
// stranger's text is escaped, with its control and direction characters made visible, and folded if it is long
// (show.go). No page contains a secret.
package pages
