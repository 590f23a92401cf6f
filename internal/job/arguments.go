package job

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// File is the result of fetching the file to which a job's FeedbackURI or ResponseURI points. The zero value means that
// the job has no file.
type File struct {
	Content      json.RawMessage // the argument fileContent; nil: the agent receives null
	Source       string          // the argument fileSource: cid, ipns, data, https, http or ar (docs/agent.md)
	Verification string          // the argument fileVerification: an erc8004.Verdict, unavailable or not_fetched
}

// Decimal is the exact number Unscaled / 10^Decimals. arguments.Schema.Fit converts it to the JSON type that the tool's
// schema requires.
type Decimal struct {
	Unscaled *big.Int
	Decimals uint8
}

// String returns the exact decimal, without an exponent and without trailing zeros: "99.77", "-3.2", "100".
func (d Decimal) String() string {
	if d.Unscaled == nil {
		return "0"
	}
	if d.Decimals == 0 {
		return d.Unscaled.String()
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Decimals)), nil)
	s := strings.TrimRight(new(big.Rat).SetFrac(d.Unscaled, scale).FloatString(int(d.Decimals)), "0")
	return strings.TrimSuffix(s, ".")
}

// MarshalJSON returns an exact JSON number.
func (d Decimal) MarshalJSON() ([]byte, error) { return []byte(d.String()), nil }

// ArgumentNames returns the names of all arguments that a tool for jobs of kind k can receive, in the order of
// docs/agent.md. It returns nil for KindAgentUpdated, which calls no tool.
func ArgumentNames(k Kind) []string {
	switch k {
	case KindNewFeedback:
		return []string{"score", "value", "valueDecimals", "tag1", "tag2", "clientAddress", "feedbackIndex",
			"fileUri", "fileHash", "fileContent", "fileVerification", "fileSource", "blockNumber", "timestamp",
			"agentId", "agentRegistry", "chainId", "transactionHash", "logIndex", "endpoint", "deliveryId"}
	case KindFeedbackRevoked:
		return []string{"clientAddress", "feedbackIndex", "reason", "blockNumber", "timestamp", "agentId",
			"agentRegistry", "chainId", "transactionHash", "logIndex", "retracts", "deliveryId"}
	case KindResponseAppended:
		return []string{"clientAddress", "feedbackIndex", "responder", "responseUri", "responseHash", "fileContent",
			"fileVerification", "fileSource", "blockNumber", "timestamp", "agentId", "agentRegistry", "chainId",
			"transactionHash", "logIndex", "deliveryId"}
	case KindValidationResponse:
		return []string{"validatorAddress", "response", "tag", "responseUri", "responseHash", "fileContent",
			"fileVerification", "fileSource", "requestHash", "blockNumber", "timestamp", "agentId", "agentRegistry",
			"chainId", "transactionHash", "logIndex", "deliveryId"}
	}
	return nil
}

// Arguments returns the values of ArgumentNames by name, before they are fitted to the tool's schema. An argument
// without a value is nil. fileContent is a json.RawMessage, and score is a Decimal. Integers of at most 53 bits are
// json.Number, larger ones decimal strings. value and agentId are always decimal strings, and all other arguments are
// strings.
func (j Job) Arguments(f File, deliveryID string) map[string]any {
	args := make(map[string]any, len(ArgumentNames(j.Kind)))
	switch j.Kind {
	case KindNewFeedback:
		args["tag1"], args["tag2"], args["endpoint"] = j.Tag1, j.Tag2, j.Endpoint
		args["fileUri"], args["fileHash"] = orNull(j.FeedbackURI), hashOrNull(j.FeedbackHash)
		args["valueDecimals"] = json.Number(strconv.Itoa(int(j.ValueDecimals)))
		if args["value"], args["score"] = nil, nil; j.Value != nil {
			args["value"] = j.Value.String()
			args["score"] = Decimal{Unscaled: j.Value, Decimals: j.ValueDecimals}
		}
	case KindFeedbackRevoked:
		args["reason"], args["retracts"] = j.Reason, orNull(j.Retracts)
	case KindResponseAppended:
		args["responder"] = j.Responder.Hex()
		args["responseUri"], args["responseHash"] = orNull(j.ResponseURI), hashOrNull(j.ResponseHash)
	case KindValidationResponse:
		args["validatorAddress"], args["requestHash"] = j.ValidatorAddress.Hex(), hashOrNull(j.RequestHash)
		args["response"], args["tag"] = json.Number(strconv.Itoa(int(j.Response))), j.Tag
		args["responseUri"], args["responseHash"] = orNull(j.ResponseURI), hashOrNull(j.ResponseHash)
	default:
		return args
	}
	if j.Kind != KindValidationResponse {
		args["clientAddress"], args["feedbackIndex"] = j.ClientAddress.Hex(), formatWhole(j.FeedbackIndex)
	}
	if j.Kind != KindFeedbackRevoked {
		args["fileSource"], args["fileVerification"] = orNull(f.Source), orNull(f.Verification)
		if args["fileContent"] = nil; f.Content != nil {
			args["fileContent"] = f.Content
		}
	}
	args["agentId"], args["agentRegistry"] = j.formatAgentID(), j.AgentRegistry()
	args["chainId"], args["transactionHash"] = formatWhole(j.ChainID), hashOrNull(j.TransactionHash)
	args["blockNumber"], args["timestamp"], args["logIndex"] = nil, nil, nil
	if j.BlockNumber > 0 {
		args["blockNumber"] = formatWhole(j.BlockNumber)
	}
	if j.Timestamp > 0 {
		args["timestamp"] = json.Number(strconv.FormatInt(j.Timestamp, 10))
	}
	if j.LogIndex != nil {
		args["logIndex"] = formatWhole(uint64(*j.LogIndex))
	}
	args["deliveryId"] = deliveryID
	return args
}

// formatWhole returns n as a JSON number if it is at most maxExact, and otherwise as a decimal string.
func formatWhole(n uint64) any {
	if n <= maxExact {
		return json.Number(strconv.FormatUint(n, 10))
	}
	return strconv.FormatUint(n, 10)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func hashOrNull(h common.Hash) any { return orNull(formatHash(h)) }
