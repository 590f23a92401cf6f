package delivery

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Hash policies: what a file that does not match its hash means (DESIGN §7).
const (
	HashStrict   = "strict"
	HashRequire  = "require"
	HashAnnotate = "annotate"
)

// Words of file_verification beside those of erc8004.Verdict.
const (
	unavailable = "unavailable"
	notFetched  = "not_fetched"
)

// maxFetches is the failed fetch after which a feedback file is left out: feedback does not die of an unpinned file.
// With the default schedule that is about three minutes after the first; a schedule with fewer attempts leaves it out
// with its last one.
const maxFetches = 6

// fetchedFile is the feedback (or response) file as the agent gets it.
type fetchedFile struct {
	job.File
	disagrees []string // fields of it that contradict the event
	failed    bool     // it could not be fetched, and is to be tried again
	detail    string
}

// fetchContent fetches the feedback (or response) file and compares it with the hash on chain.
func (e *Executor) fetchContent(ctx context.Context, c *store.Claim, slots *newcomerSlots) (fetchedFile, error) {
	uri, hash := namedFile(c.Job)
	switch {
	case uri == "":
		return fetchedFile{File: job.File{Verification: string(erc8004.NotGiven)}, detail: "no file given"}, nil
	case !c.Job.Action.IncludeFileContent:
		return fetchedFile{File: job.File{Verification: notFetched}, detail: "not asked for"}, nil
	}

	release, err := slots.acquireDomain(ctx, uri, false)
	if err != nil {
		return fetchedFile{}, err
	}
	defer release() // the file's domain has nothing to do with how long the agent takes
	doc, err := e.Fetcher.Fetch(ctx, uri, e.FetchLimit)
	if err != nil {
		return e.leaveFileOut(c, err)
	}
	found, err := e.examineFile(ctx, c.Job, doc, hash)
	fromWeb := doc.Source == ipfs.SourceHTTPS || doc.Source == ipfs.SourceHTTP
	if err == nil && found.verdict == erc8004.Mismatch && fromWeb {
		// A web server may have been in the middle of replacing the file; nothing of it is cached.
		if again, failed := e.Fetcher.Fetch(ctx, uri, e.FetchLimit); failed == nil {
			doc = again
			found, err = e.examineFile(ctx, c.Job, doc, hash)
		}
	}
	if err != nil {
		return e.leaveFileOut(c, err)
	}

	file := fetchedFile{
		File:      job.File{Source: doc.Source, Verification: string(found.verdict)},
		disagrees: found.disagrees,
	}
	switch {
	case found.verdict == erc8004.Mismatch && e.HashPolicy != HashAnnotate && c.Job.Action.VerifyFileHash:
		return file, retry.Fail(reason.HashMismatch, fmt.Sprintf("the file is not the one that was hashed: "+
			"the hash on chain is %s, keccak256 of the file is %s", hash, crypto.Keccak256Hash(doc.Bytes)))
	case found.verdict == erc8004.NotGiven && e.HashPolicy == HashRequire && describeUnproven(doc) != "":
		return file, retry.Fail(reason.HashMismatch,
			describeUnproven(doc)+" without a hash on chain, and HERALD_HASH_POLICY is require")
	}
	file.Content = found.content
	file.detail = fmt.Sprintf("%d bytes from %s (%s), hash: %s", len(doc.Bytes), doc.From, doc.Source, found.verdict)
	if len(file.disagrees) > 0 {
		file.detail += "; the file disagrees with the event in " + strings.Join(file.disagrees, ", ") +
			": the event wins"
	}
	return file, nil
}

// namedFile is the file of the job's event.
func namedFile(j job.Job) (uri string, hash common.Hash) {
	if j.Kind == job.KindResponseAppended || j.Kind == job.KindValidationResponse {
		return j.ResponseURI, j.ResponseHash
	}
	return j.FeedbackURI, j.FeedbackHash
}

// examinedFile is what a document turned out to be.
type examinedFile struct {
	verdict   erc8004.Verdict
	disagrees []string
	content   json.RawMessage // for the agent
}

// examineFile compares a file with its hash and its event, when its turn comes.
func (e *Executor) examineFile(ctx context.Context, j job.Job, doc ipfs.Document, hash common.Hash,
) (examinedFile, error) {
	release, err := e.Decoding.Acquire(ctx, len(doc.Bytes))
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

// compareWithEvent names the fields of a feedback file that contradict its event. They are told to the operator; what
// the agent receives are the event's own.
func compareWithEvent(j job.Job, file []byte) []string {
	if j.Kind != job.KindNewFeedback {
		return nil
	}
	return erc8004.CrossCheck(file, erc8004.FeedbackFacts{
		ChainID: j.ChainID, Identity: j.IdentityRegistry, AgentID: j.AgentID, Client: j.ClientAddress,
		Value: j.Value, ValueDecimals: j.ValueDecimals, Tag1: j.Tag1, Tag2: j.Tag2, Endpoint: j.Endpoint,
	})
}

// describeUnproven says how a file came whose bytes nothing but a hash on chain could prove: its URI names a place, not
// content. Empty for one that needs no hash.
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

// leaveFileOut decides whether the delivery goes on without a file that could not be had: some names lead nowhere at
// all, and those delay nobody.
func (e *Executor) leaveFileOut(c *store.Claim, err error) (fetchedFile, error) {
	left := fetchedFile{File: job.File{Verification: unavailable}}
	switch v := retry.Classify(err); {
	case v.Reason == reason.NoDocument:
		left.detail = "left out: " + err.Error()
		return left, nil
	case v.Reason == reason.ContentUnavailable && (c.FetchFailures+1 >= maxFetches || c.Budget >= e.Schedule.Attempts()):
		left.detail = fmt.Sprintf("left out after %d failed fetches: %s", c.FetchFailures+1, err)
		return left, nil
	default:
		return fetchedFile{failed: v.Reason == reason.ContentUnavailable}, fmt.Errorf("feedback file: %w", err)
	}
}

// agentContent is the file as the agent receives it: JSON (which is UTF-8, RFC 8259 §8.1) as it is, anything else
// wrapped, also JSON of more parts than anybody should have to decode.
func agentContent(doc ipfs.Document) json.RawMessage {
	if utf8.Valid(doc.Bytes) && decode.Modest(doc.Bytes) && json.Valid(doc.Bytes) {
		return doc.Bytes
	}
	return asJSON(map[string]string{"raw": base64.StdEncoding.EncodeToString(doc.Bytes), "mediaType": doc.MediaType})
}
