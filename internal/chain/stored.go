package chain

import (
	"context"
	"errors"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// checkStored compares a job with what its registry stores, now and in the block that counts as confirmed.
func (c *Client) checkStored(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	head, err := c.head(ctx)
	if err != nil {
		return Standing{}, err
	}
	if tooFarAhead(j.BlockNumber, uint64(head.Number)) {
		return contradicts("blockNumber"), nil
	}
	deep := uint64(head.Number) - min(c.confirmations, uint64(head.Number))
	if v == VerifyFinalized {
		final, err := c.finalized(ctx)
		if err != nil {
			return Standing{}, err
		}
		deep = 0
		if final != nil {
			deep = uint64(final.Number)
		}
	}
	call, field, err := storedCall(j)
	if err != nil {
		return contradicts(field), nil
	}
	const op = "reading what the registry stores"
	registry, _ := emitter(j)
	var now, confirmed hexutil.Bytes
	elems := []rpc.BatchElem{
		{Method: "eth_call", Args: callArgs(registry, call, number(uint64(head.Number))), Result: &now},
		{Method: "eth_call", Args: callArgs(registry, call, number(deep)), Result: &confirmed},
	}
	if err := c.batch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	var reverted *revert
	ret, err := c.viewed(op, registry, now, elems[0].Error)
	switch {
	case errors.As(err, &reverted):
		if s, ahead := c.ahead(j.BlockNumber, uint64(head.Number)); ahead {
			return s, nil
		}
		return contradicts(field), nil
	case err != nil:
		return Standing{}, err
	}
	field, revoked, err := storedDiffers(j, ret)
	if err != nil {
		return Standing{}, c.unavailable(op, err)
	}
	if field != "" {
		return contradicts(field), nil
	}
	s := Standing{Found: true, Revoked: revoked}
	then, err := c.viewed(op, registry, confirmed, elems[1].Error)
	switch {
	case errors.As(err, &reverted), isNoContract(err): // not written yet, or the registry was not there yet
	case err != nil:
		return Standing{}, err
	default:
		if field, _, err = storedDiffers(j, then); err != nil {
			return Standing{}, c.unavailable(op, err)
		}
		s.Confirmed = field == ""
	}
	if !s.Confirmed {
		s.ConfirmedIn = max(uint64(head.Number)-deep, 1) // when in between it was written, storage does not tell
	}
	return s, nil
}

// storedCall is the call that reads what a job is about, and the field to blame when the registry knows nothing of it.
func storedCall(j job.Job) (call []byte, field string, err error) {
	switch j.Kind {
	case job.KindValidationResponse:
		return erc8004.PackGetValidationStatus(j.RequestHash), "requestHash", nil
	case job.KindResponseAppended:
		call, err = erc8004.PackGetResponseCount(j.AgentID, j.ClientAddress, j.FeedbackIndex, j.Responder)
		return call, "responder", err
	default:
		call, err = erc8004.PackReadFeedback(j.AgentID, j.ClientAddress, j.FeedbackIndex)
		return call, "feedbackIndex", err
	}
}

// storedDiffers names the field in which a job differs from what is stored, "" if none.
func storedDiffers(j job.Job, ret []byte) (field string, revoked bool, err error) {
	switch j.Kind {
	case job.KindValidationResponse:
		// The registry keeps the newest response of a request; an older one needs its transaction to be found.
		s, err := erc8004.UnpackGetValidationStatus(ret)
		if err != nil {
			return "", false, err
		}
		return first(
			same{"validatorAddress", s.Validator == j.ValidatorAddress},
			same{"agentId", s.AgentID.Cmp(j.AgentID) == 0},
			same{"response", s.Response == j.Response},
			same{"responseHash", s.ResponseHash == j.ResponseHash},
			same{"tag", sameText(s.Tag, j.Tag)},
		), false, nil
	case job.KindResponseAppended:
		n, err := erc8004.UnpackGetResponseCount(ret)
		return first(same{"responder", n > 0}), false, err
	}
	f, err := erc8004.UnpackReadFeedback(ret)
	if err != nil {
		return "", false, err
	}
	if j.Kind == job.KindFeedbackRevoked {
		return first(same{"type", f.Revoked}), false, nil
	}
	return first(
		same{valueField(j), j.Value != nil && f.Value.Cmp(j.Value) == 0},
		same{"valueDecimals", f.ValueDecimals == j.ValueDecimals},
		same{"tag1", sameText(f.Tag1, j.Tag1)},
		same{"tag2", sameText(f.Tag2, j.Tag2)},
	), f.Revoked, nil
}

func isNoContract(err error) bool {
	var none *NoContractError
	return errors.As(err, &none)
}
