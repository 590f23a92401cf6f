package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
)

// Element is a job in Redis as its sender wrote it: an element of the old backend's list, or the body of a task. If it
// is longer than job.MaxBytes, Body is only its beginning.
type Element struct {
	Body   []byte
	Length int64 // bytes of the whole element
}

// Rejected is the verdict on an element that is not a valid job. It was stored as a rejected row, while a Refused job
// is not stored.
const Rejected store.Verdict = "rejected"

// FromList stores at most store.MaxAccept elements of the old backend's list in one transaction, and returns their
// answers in the same order. An answer has the id and the key of the stored delivery or rejected row. The jobs may set
// the fields of job.DirectField, because the operator named the list in HERALD_LEGACY_QUEUE. After an error it is
// unknown whether the elements were stored. The caller may then call FromList again: stored jobs are known.
func (in *Intake) FromList(ctx context.Context, elements []Element) ([]Answer, error) {
	intakes := make([]store.Intake, len(elements))
	for i, e := range elements {
		var err error
		// The kind is for the rejected row of an element that cannot be parsed. Nearly all jobs of the old backend are
		// feedback.
		if intakes[i], _, err = in.readUnanswered(e, job.KindNewFeedback, store.TrustDirect); err != nil {
			return nil, err
		}
	}
	got, err := in.acceptJobs(ctx, intakes)
	if err != nil {
		return nil, err
	}
	taken := make([]Answer, len(got))
	for i, a := range got {
		taken[i] = Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field, Problem: intakes[i].Refused}
		if taken[i].Problem != "" {
			taken[i].Verdict = Rejected
		}
	}
	return taken, nil
}

// parseElement parses the job in an element. If it is invalid or too long, the error is a *job.Refusal.
func (in *Intake) parseElement(e Element) (job.Job, error) {
	if e.Length > job.MaxBytes {
		return job.Job{}, &job.Refusal{Problem: fmt.Sprintf("is %d bytes long; a job may have %d",
			e.Length, job.MaxBytes)}
	}
	return job.Parse(e.Body, in.Limits)
}

// invalidKey returns the key for the rejected row of an invalid job: "invalid:" and the SHA-256 hash of Body. If Body
// is incomplete, the hash includes Length.
func (e Element) invalidKey() string {
	h := sha256.New()
	h.Write(e.Body)
	if e.Length > int64(len(e.Body)) {
		h.Write(strconv.AppendInt(nil, e.Length, 10))
	}
	return "invalid:" + hex.EncodeToString(h.Sum(nil))
}
