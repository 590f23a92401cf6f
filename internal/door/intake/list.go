package intake

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
)

// Element is a job in Redis as its sender wrote it: an element of the old backend's list, or the body of a task. If it
// is longer than job.MaxBytes, Body is only its beginning.
type Element struct {
	Body   []byte
	Length int64 // bytes of the whole element
}

// Rejected is the verdict on an element that is not a valid job. It was stored as a rejected row, while a Refused job
// is not stored.
const Rejected ledger.Verdict = "rejected"

// FromList stores at most ledger.MaxAccept elements of the old backend's list in one transaction, and returns their
// answers in the same order. An answer has the id and the key of the stored delivery or rejected row. The jobs may set
// the fields of job.DirectField, because the operator named the list in HERALD_LEGACY_QUEUE. After an error it is
// unknown whether the elements were stored. The caller may then call FromList again: stored jobs are known.
func (in *Intake) FromList(ctx context.Context, elements []Element) ([]Answer, error) {
	// The kind is for the rejected row of an element that cannot be parsed. Nearly all jobs of the old backend are
	// feedback.
	return in.acceptElements(ctx, elements, job.KindNewFeedback, ledger.TrustDirect)
}

// acceptElements stores elements in one transaction, as rows of their jobs or as rejected rows (readElement).
func (in *Intake) acceptElements(ctx context.Context, elements []Element, kind job.Kind,
	trust ledger.Trust) ([]Answer, error) {
	intakes := make([]ledger.Intake, len(elements))
	for i, e := range elements {
		var err error
		if intakes[i], err = in.readElement(e, kind, trust); err != nil {
			return nil, err
		}
	}
	got, err := in.acceptJobs(ctx, intakes)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(got))
	for i, a := range got {
		answers[i] = Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field,
			Problem: DescribeConflict(a, intakes[i].Job)}
		if refused := intakes[i].Refused; refused != "" {
			answers[i].Verdict, answers[i].Problem = Rejected, refused
		}
	}
	return answers, nil
}

// readElement parses e, whose sender gets no answer, and returns the row to store. It refuses an invalid job. If trust
// is below ledger.TrustDirect, it also refuses a job that sets a field of job.DirectField. For a refused job it returns
// a row in the status rejected. Such a row has the job's type, or kind if the job contains no type. The error means
// that the headers could not be encrypted.
func (in *Intake) readElement(e Element, kind job.Kind, trust ledger.Trust) (it ledger.Intake, err error) {
	j, err := job.Parse(e.Body, in.Limits)
	if e.Length > job.MaxBytes {
		j, err = job.Job{}, &job.Refusal{Problem: fmt.Sprintf("is %d bytes long; a job may have %d", e.Length,
			job.MaxBytes)}
	}
	if field := j.DirectField(); err == nil && field != "" && trust < ledger.TrustDirect {
		err = &job.Refusal{Path: field,
			Problem: "is not accepted from a job in Redis: use enqueue, or set HERALD_REDIS_INTAKE=on"}
	}
	if err == nil {
		return in.sealHeaders(j, ledger.Source{Name: ledger.SourceRedis, Trust: trust})
	}
	it = ledger.Intake{Job: j, Refused: err.Error(), Key: e.invalidKey(), Received: encodeReceived(e)}
	it.Job.Kind = cmp.Or(j.Kind, kind)
	return it, nil
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
