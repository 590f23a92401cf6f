// Package text prepares untrusted text for display to people.
package text
