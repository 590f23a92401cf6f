package job

import (
	"net/url"

	"github.com/agentherald/herald/internal/secret"
	"github.com/ethereum/go-ethereum/common"
)

// HeaderBinding is what the secret headers of the job's own endpoint are sealed for.
func (j Job) HeaderBinding(rawURL string) secret.Binding {
	return HeaderBinding(j.ChainID, j.IdentityRegistry.Hex(), j.AgentID.String(), rawURL)
}

// HeaderBinding ties a job's secret headers to its agent (registry in any case, decimal id) and to
// sealedOrigin of the URL they are for.
func HeaderBinding(chainID uint64, registry, agentID, rawURL string) secret.Binding {
	return secret.Binding{Purpose: "job.headers.v1", ChainID: chainID, Registry: common.HexToAddress(registry).Hex(),
		AgentID: agentID, Origin: sealedOrigin(rawURL)}
}

// sealedOrigin is scheme://host[:port] of a URL with host and port as they are written, "://" for a command. It is a
// part of the ciphertext of stored headers and only that: neither netguard.Origin, which has one spelling, nor where
// a stored token goes.
func sealedOrigin(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
