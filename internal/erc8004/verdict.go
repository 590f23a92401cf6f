package erc8004

import (
	"crypto/sha256"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Verdict is the result of comparing a file with the hash in its event.
type Verdict string

// The verdicts. All except raw, not_given and mismatch are forms that some writers hash in practice.
const (
	Raw      Verdict = "raw"       // keccak256 of the exact bytes, as ERC-8004 requires
	JCS      Verdict = "jcs"       // keccak256 of the RFC 8785 form
	Agent0TS Verdict = "agent0_ts" // of agent0-ts, which omits nested members that the top level lacks
	Agent0Py Verdict = "agent0_py" // of agent0-py: json.dumps(sort_keys=True)
	Compact  Verdict = "compact"   // of JSON.stringify in the file's own order
	SHA256   Verdict = "sha256"    // SHA-256 of the exact bytes
	NotGiven Verdict = "not_given" // the hash is zero, which never means "of an empty file"
	Mismatch Verdict = "mismatch"
)

// VerifyHash compares a file with the feedbackHash or responseHash of its event. immutable means that the file's URI
// fixes its bytes (a CID or a data URI). Then only the author can have written the members that agent0-ts omits.
func VerifyHash(content []byte, want common.Hash, immutable bool) Verdict {
	switch {
	case want == (common.Hash{}):
		return NotGiven
	case crypto.Keccak256Hash(content) == want:
		return Raw
	case sha256.Sum256(content) == want:
		return SHA256
	}
	return compareCanonical(content, want, immutable)
}
