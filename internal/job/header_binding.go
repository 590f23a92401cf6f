package job

import (
	"net/url"

	"github.com/agentherald/herald/internal/secret"
	"github.com/ethereum/go-ethereum/common"
)

// HeaderBinding returns the binding with which the secret headers of the job's own endpoint are sealed.
func (j Job) HeaderBinding(rawURL string) secret.Binding {
	return HeaderBinding(j.ChainID, j.IdentityRegistry.Hex(), j.AgentID.String(), rawURL)
}

// HeaderBinding returns a binding of secret headers to their agent (registry in any case, decimal id) and to the
// sealedOrigin of their URL.
func HeaderBinding(chainID uint64, registry, agentID, rawURL string) secret.Binding {
	return secret.Binding{Purpose: "job.headers.v1", ChainID: chainID, Registry: common.HexToAddress(registry).Hex(),
		AgentID: agentID, Origin: sealedOrigin(rawURL)}
}

// sealedOrigin returns scheme://host[:port] of a URL, with host and port as they are written, or "://" for a command.
// The result is part of the authenticated data of stored headers, so its spelling must not change. It differs from
// netguard.Origin, which normalises the spelling, and does not decide where a stored token is sent.
func sealedOrigin(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
