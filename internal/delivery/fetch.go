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

// giveUpFetching is the failed fetch after which a feedback file is left out: feedback does not die of an unpinned file. With the
// default schedule that is about three minutes after the first; a schedule with fewer attempts leaves it out with its last one.
const giveUpFetching = 6

// fetch brings the feedback (or response) file and compares it with the hash on chain.
func (p *Executor) fetch(ctx context.Context, a *attempt) (string, error) {
	uri, hash := a.job.FeedbackURI, a.job.FeedbackHash
	if a.job.Kind == job.KindResponseAppended || a.job.Kind == job.KindValidationResponse {
		uri, hash = a.job.ResponseURI, a.job.ResponseHash
	}
	note := func(source, verification string) {
		a.file.Source, a.file.Verification = source, verification
		a.out.FileSource, a.out.FileVerification = source, verification
	}
	switch {
	case uri == "":
		note("", string(erc8004.NotGiven))
		return "no file given", nil
	case !a.job.Action.IncludeFileContent:
		note("", notFetched)
		return "not asked for", nil
	}
	held := len(a.slots)
	if err := p.Newcomers.acquireDomain(ctx, a, uri); err != nil {
		return "", err
	}
	defer a.leaveSlots(ctx, held) // the file's domain has nothing to do with how long the agent takes
	doc, err := p.Fetcher.Fetch(ctx, uri, p.FetchLimit)
	if err != nil {
		return p.withoutFile(a, err, note)
	}
	file, err := p.examine(ctx, a.job, doc, hash)
	if err == nil && file.verdict == erc8004.Mismatch && (doc.Source == ipfs.SourceHTTPS || doc.Source == ipfs.SourceHTTP) {
		// A web server may have been in the middle of replacing the file; nothing of it is cached.
		if again, failed := p.Fetcher.Fetch(ctx, uri, p.FetchLimit); failed == nil {
			doc = again
			file, err = p.examine(ctx, a.job, doc, hash)
		}
	}
	if err != nil {
		return p.withoutFile(a, err, note)
	}
	verdict := file.verdict
	note(doc.Source, string(verdict))
	a.out.FileDisagrees = file.disagrees
	switch {
	case verdict == erc8004.Mismatch && p.HashPolicy != HashAnnotate && a.job.Action.VerifyFileHash:
		return "", retry.Fail(retry.HashMismatch, fmt.Sprintf("the file is not the one that was hashed: the hash on chain is %s, keccak256 of the file is %s",
			hash, crypto.Keccak256Hash(doc.Bytes)))
	case verdict == erc8004.NotGiven && p.HashPolicy == HashRequire && unproven(doc) != "":
		return "", retry.Fail(retry.HashMismatch, unproven(doc)+" without a hash on chain, and HERALD_HASH_POLICY is require")
	}
	a.file.Content = file.content
	detail := fmt.Sprintf("%d bytes from %s (%s), hash: %s", len(doc.Bytes), doc.From, doc.Source, verdict)
	if len(a.out.FileDisagrees) > 0 {
		detail += "; the file disagrees with the event in " + strings.Join(a.out.FileDisagrees, ", ") + ": the event wins"
	}
	return detail, nil
}

// examined is what a file that was fetched turned out to be.
type examined struct {
	verdict   erc8004.Verdict
	disagrees []string
	content   json.RawMessage // for the agent
}

// examine compares a file with its hash and its event, when its turn comes.
func (p *Executor) examine(ctx context.Context, j job.Job, doc ipfs.Document, hash common.Hash) (examined, error) {
	release, err := p.Decoding.Acquire(ctx, len(doc.Bytes))
	if err != nil {
		return examined{}, err
	}
	defer release()
	return examined{erc8004.VerifyHash(doc.Bytes, hash, doc.Immutable()), disagreements(j, doc.Bytes), content(doc)}, nil
}

// disagreements names the fields of a feedback file that contradict its event. They are told to the operator; what the agent receives
// are the event's own.
func disagreements(j job.Job, file []byte) []string {
	if j.Kind != job.KindNewFeedback {
		return nil
	}
	return erc8004.CrossCheck(file, erc8004.FeedbackFacts{
		ChainID: j.ChainID, Identity: j.IdentityRegistry, AgentID: j.AgentID, Client: j.ClientAddress,
		Value: j.Value, ValueDecimals: j.ValueDecimals, Tag1: j.Tag1, Tag2: j.Tag2, Endpoint: j.Endpoint,
	})
}

// unproven says how a file came whose bytes nothing but a hash on chain could prove: its URI names a place, not content. Empty for one
// that needs no hash.
func unproven(doc ipfs.Document) string {
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

// withoutFile decides about a file that could not be had: some names lead nowhere at all, and those delay nobody.
func (p *Executor) withoutFile(a *attempt, err error, note func(source, verification string)) (string, error) {
	switch v := retry.Classify(err); {
	case v.Reason == retry.NoDocument:
		note("", unavailable)
		return "left out: " + err.Error(), nil
	case v.Reason == retry.ContentUnavailable && (a.claim.FetchFailures+1 >= giveUpFetching || a.claim.Budget >= p.Schedule.Attempts()):
		note("", unavailable)
		return fmt.Sprintf("left out after %d failed fetches: %s", a.claim.FetchFailures+1, err), nil
	case v.Reason == retry.ContentUnavailable:
		a.out.FetchFailed = true
	}
	return "", fmt.Errorf("feedback file: %w", err)
}

// content is the file as the agent receives it: JSON (which is UTF-8, RFC 8259 §8.1) as it is, anything else wrapped, also JSON of more parts
// than anybody should have to decode.
func content(doc ipfs.Document) json.RawMessage {
	if utf8.Valid(doc.Bytes) && decode.Modest(doc.Bytes) && json.Valid(doc.Bytes) {
		return doc.Bytes
	}
	return asJSON(map[string]string{"raw": base64.StdEncoding.EncodeToString(doc.Bytes), "mediaType": doc.MediaType})
}
