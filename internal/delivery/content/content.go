// Package content fetches the feedback or response file of a delivery, verifies it against the hash on the chain,
// compares it with the event, and converts it to the form for the agent. Package ipfs makes the requests, and erc8004
// contains the forms of a hash. See docs/design/content.md.
//
// Invariants: no file with a wrong hash is returned as verified. If no node has the file, the delivery waits for at
// most maxFetches attempts.
package content

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Hash policies (HERALD_HASH_POLICY): the handling of a file whose hash differs from the hash on the chain. See
// docs/design/content.md.
const (
	HashStrict   = "strict"   // the delivery is rejected, if the job sets verifyFileHash
	HashRequire  = "require"  // as strict; also rejected if neither the chain nor the file's URI contains its hash
	HashAnnotate = "annotate" // the file is delivered, with the result in the argument fileVerification
)

// Values of the tool's argument fileVerification, in addition to those of erc8004.Verdict.
const (
	unavailable = "unavailable" // the file could not be fetched, and the delivery continues without it
	notFetched  = "not_fetched" // the job does not ask for the file
)

// maxFetches is the number of failed fetches after which a feedback is delivered without its file. Otherwise a file
// that no IPFS node has would prevent the delivery. With the default schedule the sixth fetch is about three minutes
// after the first. If the schedule allows fewer attempts, the last one delivers the feedback without the file.
const maxFetches = 6

// File is the feedback or response file as the agent gets it.
type File struct {
	job.File
	Disagrees []string // names of the file's fields that contradict the event
	Failed    bool     // the fetch failed, and the next attempt repeats it
	Detail    string   // for display: the result as a phrase
}

// Fetcher fetches content by URI.
type Fetcher interface {
	Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
	// FetchAnew is Fetch without the cached content of names.
	FetchAnew(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
}

// Reader fetches files. Safe for concurrent use.
type Reader struct {
	Fetcher  Fetcher
	Limit    int64          // size of the largest file, in bytes
	Policy   string         // HashStrict, HashRequire or HashAnnotate
	Attempts int            // of a delivery, by its schedule
	Decoding *decode.Budget // nil: no bound
}

// Fetch fetches the feedback or response file of the claim c and compares it with the hash on the chain. If the
// event names no file, or the job does not ask for its content, it fetches nothing. Fetch acquires
// group permits with pass (AdmitFile), and releases them after the fetch.
//
// A file that cannot be fetched may be omitted without an error (leaveFileOut). A wrong hash is an error
// (hash_mismatch) if the job sets verifyFileHash and Policy is not HashAnnotate. But if the bytes may be other bytes
// than the URI names (ipfs.Document.LastResort), a wrong hash is a failed fetch. So it is if the URI does not determine
// the content, and a second fetch fails. With HashRequire, it is also an error if the event has no hash and the file's
// URI does not determine its content.
func (r *Reader) Fetch(ctx context.Context, c *ledger.Claim, pass *admission.Pass) (File, error) {
	uri, hash := namedFile(c.Job)
	switch {
	case uri == "":
		return File{File: job.File{Verification: string(erc8004.NotGiven)}, Detail: "no file given"}, nil
	case !c.Job.Action.IncludeFileContent:
		return File{File: job.File{Verification: notFetched}, Detail: "not asked for"}, nil
	}

	fetching, release, err := pass.AdmitFile(ctx, uri)
	if err != nil {
		return File{}, err
	}
	defer release() // before the call: a slow agent must not use up the group permits of the file's domain
	doc, err := r.Fetcher.Fetch(fetching, uri, r.Limit)
	if err != nil && fetching.Err() != nil && ctx.Err() == nil { // no slot for a slow fetch
		return File{}, context.Cause(fetching)
	}
	if err != nil {
		return r.leaveFileOut(c, err)
	}
	mustMatch := r.Policy != HashAnnotate && c.Job.Action.VerifyFileHash
	found, err := r.examineFile(ctx, c.Job, doc, hash)
	if err == nil && found.verdict == erc8004.Mismatch && !doc.Immutable() {
		// A web server may have been replacing the file during the fetch. A name may lead to another file since it was
		// looked up.
		again, failed := r.Fetcher.FetchAnew(fetching, uri, r.Limit)
		if failed != nil && fetching.Err() != nil && ctx.Err() == nil {
			return File{}, context.Cause(fetching)
		}
		switch {
		case failed == nil:
			doc = again
			found, err = r.examineFile(ctx, c.Job, doc, hash)
		case mustMatch, doc.Source == ipfs.SourceIPNS:
			err = failed // the file to which the URI leads now is unknown
		}
	}
	if err == nil && found.verdict == erc8004.Mismatch && doc.LastResort {
		err = &ipfs.UnavailableError{URI: "the file", Err: errors.New("no IPFS gateway could serve it, and its " +
			"URI's own gateway served something else than was hashed")}
	}
	if err != nil {
		return r.leaveFileOut(c, err)
	}

	file := File{
		File:      job.File{Source: doc.Source, Verification: string(found.verdict)},
		Disagrees: found.disagrees,
	}
	switch {
	case found.verdict == erc8004.Mismatch && mustMatch:
		return file, outcome.Fail(outcome.HashMismatch, fmt.Sprintf("the file is not the one that was hashed: "+
			"the hash on chain is %s, that of the file is %s", hash, crypto.Keccak256Hash(doc.Bytes)))
	case found.verdict == erc8004.NotGiven && r.Policy == HashRequire && describeUnproven(doc) != "":
		return file, outcome.Fail(outcome.HashMismatch,
			describeUnproven(doc)+" without a hash on chain, and HERALD_HASH_POLICY is require")
	}
	file.Content = found.content
	file.Detail = fmt.Sprintf("%d bytes from %s (%s), hash: %s", len(doc.Bytes), doc.From, doc.Source, found.verdict)
	if len(file.Disagrees) > 0 {
		file.Detail += "; the file disagrees with the event in " + strings.Join(file.Disagrees, ", ") +
			": the event wins"
	}
	return file, nil
}

// IsWanted reports whether the event of job j names a file and j asks for its content.
func IsWanted(j job.Job) bool {
	uri, _ := namedFile(j)
	return uri != "" && j.Action.IncludeFileContent
}

// namedFile returns the URI and the hash of the file that the event of job j names. uri is "" if it names none.
func namedFile(j job.Job) (uri string, hash common.Hash) {
	if j.Kind == job.KindResponseAppended || j.Kind == job.KindValidationResponse {
		return j.ResponseURI, j.ResponseHash
	}
	return j.FeedbackURI, j.FeedbackHash
}

// examinedFile is the result of examineFile.
type examinedFile struct {
	verdict   erc8004.Verdict
	disagrees []string
	content   json.RawMessage // in the form for the agent
}

// examineFile compares the fetched file doc with hash and with the event of job j, and converts it to the form for the
// agent. It waits for memory to decode the file. The error means that no memory became free in time.
func (r *Reader) examineFile(ctx context.Context, j job.Job, doc ipfs.Document, hash common.Hash,
) (examinedFile, error) {
	release, err := r.Decoding.Acquire(ctx, len(doc.Bytes))
	if err != nil {
		return examinedFile{}, err
	}
	defer release()
	return examinedFile{
		verdict:   erc8004.VerifyHash(doc.Bytes, hash, doc.Immutable()),
		disagrees: compareWithEvent(j, doc.Bytes),
		content:   agentContent(doc),
	}, nil
}

// compareWithEvent returns the names of the feedback file's fields that contradict the event of job j. The operator
// sees these names. The agent receives the event's values.
func compareWithEvent(j job.Job, file []byte) []string {
	if j.Kind != job.KindNewFeedback {
		return nil
	}
	return erc8004.CrossCheck(file, erc8004.FeedbackFacts{
		ChainID: j.ChainID, Identity: j.IdentityRegistry, AgentID: j.AgentID, Client: j.ClientAddress,
		Value: j.Value, ValueDecimals: j.ValueDecimals, Tag1: j.Tag1, Tag2: j.Tag2, Endpoint: j.Endpoint,
	})
}

// describeUnproven returns a phrase for the source of doc, such as "the file lies on https", if the file's URI does not
// determine its content, so that only a hash on the chain could verify it. For other sources it returns "".
func describeUnproven(doc ipfs.Document) string {
	switch {
	case doc.Source == ipfs.SourceHTTPS, doc.Source == ipfs.SourceHTTP:
		return "the file lies on " + doc.Source
	case doc.Source == ipfs.SourceAr:
		return "the file comes from an Arweave gateway, unverified,"
	case doc.DNSLink:
		return "the file's ipns name was looked up in DNS (DNSLink)"
	}
	return ""
}

// leaveFileOut decides whether the delivery continues without the file, whose fetch failed with err. It returns a file
// without content, and no error, if the file can never be fetched (no_document), or if it is unavailable and this is
// the maxFetches-th failure or the last attempt. Otherwise it returns err.
func (r *Reader) leaveFileOut(c *ledger.Claim, err error) (File, error) {
	left := File{File: job.File{Verification: unavailable}}
	switch v := classify.Error(err); {
	case v.Reason == outcome.NoDocument:
		left.Detail = "left out: " + err.Error()
		return left, nil
	case v.Reason == outcome.ContentUnavailable &&
		(c.FetchFailures+1 >= maxFetches || c.Budget >= r.Attempts):
		left.Detail = fmt.Sprintf("left out after %d failed fetches: %s", c.FetchFailures+1, err)
		return left, nil
	default:
		return File{Failed: v.Reason == outcome.ContentUnavailable}, fmt.Errorf("feedback file: %w", err)
	}
}

// maxEscaped bounds the JSON of a file as it is sent, in bytes. encoding/json writes <, > and & with six bytes, so
// that a file of the largest size could become larger than all arguments of a call may be.
const maxEscaped = 2 << 20

// agentContent returns the file doc as the agent gets it: JSON unchanged, and anything else as a JSON object with the
// bytes in base64. JSON also becomes base64 if it could make a delivery fail (isSafeJSON).
func agentContent(doc ipfs.Document) json.RawMessage {
	if isSafeJSON(doc.Bytes) {
		return doc.Bytes
	}
	wrapped, _ := json.Marshal(map[string]string{ // strings cannot fail
		"raw": base64.StdEncoding.EncodeToString(doc.Bytes), "mediaType": doc.MediaType})
	return wrapped
}

// isSafeJSON reports whether text is JSON in UTF-8 (RFC 8259 §8.1) that an agent can decode at low cost. decode.Modest
// limits its values, it has at most maxEscaped bytes after escaping, and each number fits a float64. Many
// MCP servers decode all arguments into float64 before they call the tool, and fail at a larger number.
func isSafeJSON(text []byte) bool {
	var value any
	return utf8.Valid(text) && decode.Modest(text) && countEscaped(text) <= maxEscaped &&
		json.Unmarshal(text, &value) == nil
}

// countEscaped returns the length of JSON text after json.HTMLEscape.
func countEscaped(text []byte) int {
	n := len(text)
	for char, growth := range map[string]int{"<": 5, ">": 5, "&": 5, "\u2028": 3, "\u2029": 3} {
		n += bytes.Count(text, []byte(char)) * growth
	}
	return n
}
