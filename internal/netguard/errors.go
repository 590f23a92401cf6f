package netguard

import "fmt"

// BlockedError says that the guard refused to connect to an address. It is
// found with errors.As through *url.Error and *net.OpError. The refusal is
// final: the same destination is refused again until the configuration or the
// name's addresses change.
type BlockedError struct {
	Host    string // as the URL named it, without port; empty when only the address is known
	Address string // the address that would have been connected, with port when known
	Why     string // a clause: "it is not a public address"
}

func (e *BlockedError) Error() string {
	where := e.Address
	if e.Host != "" && e.Host != e.Address {
		where = fmt.Sprintf("%s (%s)", e.Host, e.Address)
	}
	return fmt.Sprintf("connection to %s is blocked: %s", where, e.Why)
}

// RefusedURLError says that a URL is of a form that is never dialled, whatever
// its host resolves to. The URL's path, query and user information are not in
// the message, they may hold secrets.
type RefusedURLError struct {
	Host string
	Why  string
}

func (e *RefusedURLError) Error() string {
	if e.Host == "" {
		return "URL refused: " + e.Why
	}
	return fmt.Sprintf("URL on host %s refused: %s", e.Host, e.Why)
}

// RedirectError says that an answer led through more redirects than allowed.
type RedirectError struct {
	Max int
}

func (e *RedirectError) Error() string {
	return fmt.Sprintf("more than %d redirects", e.Max)
}
