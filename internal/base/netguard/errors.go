package netguard

import "fmt"

// BlockedError means that the guard refused to connect to an address. errors.As finds it inside *url.Error and
// *net.OpError. The same destination is refused again until the configuration or the name's addresses change.
type BlockedError struct {
	Host    string // the host in the URL, without port; empty if only the address is known
	Address string // the address that would have been connected, with its port if known
	Why     string // a clause: "it is not a public address"
}

func (e *BlockedError) Error() string {
	where := e.Address
	if e.Host != "" && e.Host != e.Address {
		where = fmt.Sprintf("%s (%s)", e.Host, e.Address)
	}
	return fmt.Sprintf("connection to %s is blocked: %s", where, e.Why)
}

// RefusedURLError means that a URL has a form that is never dialled, independent of its host. The message does not
// contain the URL's path, query or user information, because they may contain secrets.
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

// RedirectError means that an answer needed more redirects than allowed.
type RedirectError struct {
	Max int
}

func (e *RedirectError) Error() string {
	return fmt.Sprintf("more than %d redirects", e.Max)
}
