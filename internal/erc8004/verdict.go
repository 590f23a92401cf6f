package erc8004

import (
	"crypto/sha256"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Verdict is the result of comparing a file with the hash in its event. Except for NotGiven and Mismatch, it names the
// form of the file that has this hash.
type Verdict string

// The verdicts. ERC-8004 requires Raw. The other forms are those that programs hash in practice.
const (
	Raw      Verdict = "raw"       // keccak256 of the exact bytes
	JCS      Verdict = "jcs"       // keccak256 of the canonical form of RFC 8785
	Agent0TS Verdict = "agent0_ts" // keccak256 of the form of agent0-ts (canonicalForm.keep)
	Agent0Py Verdict = "agent0_py" // keccak256 of the form of agent0-py, json.dumps(sort_keys=True)
	Compact  Verdict = "compact"   // keccak256 of the form of JSON.stringify, without sorting the members
	SHA256   Verdict = "sha256"    // SHA-256 of the exact bytes
	NotGiven Verdict = "not_given" // the event has no hash: it is zero
	Mismatch Verdict = "mismatch"  // no form of the file has this hash
)

// VerifyHash compares a file with want, the feedbackHash or responseHash of its event. immutable means that the file's
// URI determines its bytes: it is a data URI or contains a CID. A server cannot add members or digits to such a file,
// so VerifyHash accepts those that a form omits.
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
