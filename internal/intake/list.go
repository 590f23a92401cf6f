package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Element is what somebody put into a list of Redis. Of more than job.MaxBytes only the beginning is known.
type Element struct {
	Body   []byte
	Length int64 // of all of it
}

// Rejected is the verdict on an element that is no job that Herald takes: it was stored as a rejected row.
const Rejected store.Verdict = "rejected"

// Taken is what became of an element.
type Taken struct {
	Verdict store.Verdict
	ID      uuid.UUID
	Key     string
	Field   string // Conflict: the event's field that differs
	Problem string // Rejected: what is wrong with it
}

// FromList commits elements of the old backend's list, at most store.MaxAccept. Its jobs may set fields of job.DirectField:
// the operator named the list for this backend. After an error none of them is known to be stored, and taking them again is harmless.
func (in *Intake) FromList(ctx context.Context, elements []Element) ([]Taken, error) {
	intakes := make([]store.Intake, len(elements))
	for i, e := range elements {
		var err error
		// Nearly all of them are feedback, and what cannot be read does not say.
		if intakes[i], _, err = in.readUnanswered(e, job.KindNewFeedback, true); err != nil {
			return nil, err
		}
	}
	got, err := in.acceptJobs(ctx, intakes)
	if err != nil {
		return nil, err
	}
	taken := make([]Taken, len(got))
	for i, a := range got {
		taken[i] = Taken{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Field: a.Field, Problem: intakes[i].Refused}
		if taken[i].Problem != "" {
			taken[i].Verdict = Rejected
		}
	}
	return taken, nil
}

// parseElement reads a job. The error of one that is no good is a *job.Refusal.
func (in *Intake) parseElement(e Element) (job.Job, error) {
	if e.Length > job.MaxBytes {
		return job.Job{}, &job.Refusal{Problem: fmt.Sprintf("is %d bytes long; a job may have %d", e.Length, job.MaxBytes)}
	}
	return job.Parse(e.Body, in.Limits)
}

// invalidKey is the key of bytes that name no event: their hash. Of more bytes than were read it is the hash of those
// and of the length.
func (e Element) invalidKey() string {
	h := sha256.New()
	h.Write(e.Body)
	if e.Length > int64(len(e.Body)) {
		h.Write(strconv.AppendInt(nil, e.Length, 10))
	}
	return "invalid:" + hex.EncodeToString(h.Sum(nil))
}
