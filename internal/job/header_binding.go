package job

import (
	"net/url"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/ethereum/go-ethereum/common"
)

// HeaderBinding returns the binding for the headers of the endpoint in the job's action: the data without which the
// encrypted headers cannot be decrypted. rawURL is the URL of that endpoint.
func (j Job) HeaderBinding(rawURL string) secret.Binding {
	return HeaderBinding(j.ChainID, j.IdentityRegistry.Hex(), j.AgentID.String(), rawURL)
}

// HeaderBinding returns the binding under which a job's headers are encrypted. Ciphertext can be decrypted only with
// the same binding, so with the same agent and the same sealedOrigin of rawURL. registry is the hex address of the
// identity registry, in upper or lower case; agentID is decimal.
func HeaderBinding(chainID uint64, registry, agentID, rawURL string) secret.Binding {
	return secret.Binding{Purpose: "job.headers.v1", ChainID: chainID, Registry: common.HexToAddress(registry).Hex(),
		AgentID: agentID, Origin: sealedOrigin(rawURL)}
}

// sealedOrigin returns scheme://host[:port] of a URL, with the host and port as they are written. It returns "://" for
// the empty URL of a command, and "" for an invalid URL. Stored headers can be decrypted only with this exact text, so
// it must not change. It differs from netguard.Origin, which normalises host and port.
func sealedOrigin(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
