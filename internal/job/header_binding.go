package job

import (
	"net/url"

	"github.com/agentherald/herald/internal/secret"
	"github.com/ethereum/go-ethereum/common"
)

// HeaderBinding returns the binding with which the secret headers of the job's own endpoint are encrypted. rawURL is
// the URL of that endpoint.
func (j Job) HeaderBinding(rawURL string) secret.Binding {
	return HeaderBinding(j.ChainID, j.IdentityRegistry.Hex(), j.AgentID.String(), rawURL)
}

// HeaderBinding returns a binding of secret headers to their agent and to the sealedOrigin of their URL. registry is
// the hex address of the identity registry, in upper, lower or mixed case; agentID is decimal.
func HeaderBinding(chainID uint64, registry, agentID, rawURL string) secret.Binding {
	return secret.Binding{Purpose: "job.headers.v1", ChainID: chainID, Registry: common.HexToAddress(registry).Hex(),
		AgentID: agentID, Origin: sealedOrigin(rawURL)}
}

// sealedOrigin returns scheme://host[:port] of a URL, with host and port as they are written: "://" for the empty URL
// of a command, "" for an invalid URL. It is part of the authenticated data of stored headers, so its spelling must not
// change. It is not netguard.Origin, which normalises the spelling and for which tokens are stored.
func sealedOrigin(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
