// Package text makes strangers' text fit to be shown to a person.
package text
