package chain

import (
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// compareKey returns the name of the field because of which the event's key is not the job's, or "". A NewFeedback
// without an index may have the job's key.
func compareKey(j job.Job, e erc8004.Event) string {
	registry, field := emitterOf(j)
	ofPair := j.Kind != job.KindValidationResponse // the key names an agent and a client
	hasIndex := e.Kind != erc8004.NewFeedback || e.HasIndex
	switch {
	case string(e.Kind) != string(j.Kind):
		return "type"
	case e.Address != registry:
		return field
	case !ofPair && e.RequestHash != j.RequestHash:
		return "requestHash"
	case ofPair && (j.AgentID == nil || e.AgentID.Cmp(j.AgentID) != 0):
		return "agentId"
	case ofPair && e.Client != j.ClientAddress:
		return "clientAddress"
	case ofPair && hasIndex && e.FeedbackIndex != j.FeedbackIndex:
		return "feedbackIndex"
	case ofPair && e.Responder != j.Responder:
		return "responder"
	case j.HasPositionKey() && (j.LogIndex == nil || e.LogIndex != *j.LogIndex):
		return "logIndex"
	}
	return ""
}

// pickFeedback returns the event with the job's key among events that compareKey accepts. The forms of 2025 lack
// fields. The index comes from getLastIndex at the event's block. tag1, of which the log may contain only the hash,
// comes from the registry's state, or from the job if it has that hash. If the node cannot serve the state of the
// block, the job's fields select the event, and must agree with the registry's stored feedback. field is not empty if
// no event or more than one has the key.
func (c *Client) pickFeedback(
	ctx context.Context, j job.Job, stored *erc8004.StoredFeedback, found []erc8004.Event,
) (e erc8004.Event, field string, err error) {
	if !slices.ContainsFunc(found, func(e erc8004.Event) bool { return e.Kind == erc8004.NewFeedback && !e.HasIndex }) {
		return restoreTag(j, found[len(found)-1], stored)
	}
	counted, uncountable, err := c.CountFound(ctx, newFilter(j), found)
	if err != nil {
		return e, "", err
	}
	fits := func(e erc8004.Event) bool { return e.FeedbackIndex == j.FeedbackIndex }
	if uncountable {
		if stored == nil || !isStored(j, *stored) {
			return e, "feedbackIndex", nil
		}
		fits = func(e erc8004.Event) bool { return hasContent(j, e) }
	}
	counted = slices.DeleteFunc(counted, func(e erc8004.Event) bool { return !fits(e) })
	if len(counted) != 1 {
		return e, "feedbackIndex", nil
	}
	counted[0].FeedbackIndex, counted[0].HasIndex = j.FeedbackIndex, true
	return restoreTag(j, counted[0], stored)
}

// restoreTag sets tag1 if the log contains only its hash.
func restoreTag(j job.Job, e erc8004.Event, stored *erc8004.StoredFeedback) (_ erc8004.Event, field string, _ error) {
	if !e.Tag1Lost {
		return e, "", nil
	}
	tags := []string{j.Tag1}
	if stored != nil {
		tags = append(tags, stored.Tag1)
	}
	for _, tag := range tags {
		if crypto.Keccak256Hash([]byte(tag)) == e.Tag1Hash {
			e.Tag1, e.Tag1Lost = tag, false
			return e, "", nil
		}
	}
	return e, "tag1", nil
}

// hasContent reports whether a NewFeedback has the content of the job.
func hasContent(j job.Job, e erc8004.Event) bool {
	return j.Value != nil && e.Value.Cmp(j.Value) == 0 && e.ValueDecimals == j.ValueDecimals && sameTag1(e, j.Tag1) &&
		erc8004.SameText(e.Tag2, j.Tag2) && erc8004.SameText(e.Endpoint, j.Endpoint) &&
		erc8004.SameText(e.FeedbackURI, j.FeedbackURI) && e.FeedbackHash == j.FeedbackHash
}

// isStored reports whether the registry's stored feedback agrees with the job.
func isStored(j job.Job, stored erc8004.StoredFeedback) bool {
	return j.Value != nil && stored.Value.Cmp(j.Value) == 0 && stored.ValueDecimals == j.ValueDecimals &&
		erc8004.SameText(stored.Tag1, j.Tag1) && erc8004.SameText(stored.Tag2, j.Tag2)
}

// sameTag1 compares a job's tag with the event's tag1, of which the log may contain only the hash. A tag that was
// repaired (U+FFFD) has another hash than the original, so it always matches here; isStored compares it with the
// registry's state.
func sameTag1(e erc8004.Event, tag string) bool {
	if !e.Tag1Lost {
		return erc8004.SameText(e.Tag1, tag)
	}
	return crypto.Keccak256Hash([]byte(tag)) == e.Tag1Hash || strings.ContainsRune(tag, utf8.RuneError)
}
