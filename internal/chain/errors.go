package chain

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/gorilla/websocket"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// UnavailableError says that a node could not be asked or did not answer properly. Trying again later may help.
type UnavailableError struct {
	ChainID uint64
	Op      string // what was being asked
	Err     error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("chain %d: %s: %v", e.ChainID, e.Op, e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// WrongChainError says that the node behind RPC_URL_<chain> serves another chain.
type WrongChainError struct {
	Want, Got uint64
}

func (e *WrongChainError) Error() string {
	return fmt.Sprintf("the node that RPC_URL_%d names serves chain %d: set the variable to a node of chain %d",
		e.Want, e.Got, e.Want)
}

// NoSuchAgentError says that the identity registry does not know an agent.
type NoSuchAgentError struct {
	ChainID  uint64
	Registry common.Address
	AgentID  *big.Int
}

func (e *NoSuchAgentError) Error() string {
	return fmt.Sprintf("the identity registry %s on chain %d has no agent %s", e.Registry, e.ChainID, e.AgentID)
}

// NoSuchAgent tells packages that do not know this one what the error means.
func (e *NoSuchAgentError) NoSuchAgent() bool { return true }

// NoContractError says that an address has no code, so whatever was asked of it has no answer. It comes inside of an
// *UnavailableError: a wrong setting can be mended, and events are not to be lost to one.
type NoContractError struct {
	ChainID uint64
	Address common.Address
}

func (e *NoContractError) Error() string {
	return fmt.Sprintf("there is no contract at %s on chain %d: check the registry addresses of this chain",
		e.Address, e.ChainID)
}

// statusError is an answer with an HTTP status of failure. The body is never shown: gateways put keys into it.
type statusError struct {
	status string
	body   string // bounded; how wide a range may be is read from it
}

func (e *statusError) Error() string { return "the node answered " + e.status }

// code is the status as a number, 0 if it has none.
func (e *statusError) code() int {
	digits, _, _ := strings.Cut(e.status, " ")
	code, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return code
}

// rpcError is a JSON-RPC error. The message is the node's, bounded.
type rpcError struct {
	code    int
	message string
}

func (e *rpcError) Error() string {
	return fmt.Sprintf("the node answered error %d: %s", e.code, e.message)
}

const maxMessage = 300

// maskError returns an error that can be shown: without the node's URL, which net/http puts into every error and some
// nodes put into their answers, and bounded. What errors.Is can find of context and net errors stays.
//
// What failed on the way to the node is told in words of ours; within is the time that it had.
func maskError(err error, within time.Duration, mask *secret.Masker) error {
	var httpErr rpc.HTTPError
	var code rpc.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge), errors.Is(err, errTooLarge), errors.Is(err, websocket.ErrReadLimit):
		return errTooLarge
	case errors.Is(err, decode.ErrBusy):
		return decode.ErrBusy // without the deadline that ended the wait: the node was in time
	case errors.Is(err, errCompressed):
		return errCompressed
	case errors.Is(err, errManyElements):
		return errManyElements
	case errors.As(err, &httpErr):
		return &statusError{httpErr.Status, text.Excerpt(string(httpErr.Body), maxMessage)}
	case errors.As(err, &code):
		return &rpcError{code.ErrorCode(), text.Excerpt(mask.Replace(code.Error()), maxMessage)}
	}
	return netguard.Explain("the node", within, err)
}

// listKeys lists what of a node's URL may be a key: user and password, the header that they become, and what is in the
// path and in the query. Shorter parts of those two are no keys.
func listKeys(u *url.URL) []string {
	const shortest = 8
	var parts []string
	if user := u.User.Username(); user != "" {
		password, _ := u.User.Password()
		parts = []string{password, user, base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
	}
	texts := append(strings.Split(u.Path, "/"), u.RawQuery)
	for _, values := range u.Query() {
		texts = append(texts, values...)
	}
	return append(parts, slices.DeleteFunc(texts, func(s string) bool { return len(s) < shortest })...)
}

// findRevert returns the data of a revert and whether err is one: the contract's own answer, not trouble with the node.
// Nodes differ in how they say it: code 3 with the data in hex, other codes with the same, or the word "Reverted"
// before it.
func findRevert(err error) ([]byte, bool) {
	var code rpc.Error
	if !errors.As(err, &code) {
		return nil, false
	}
	var data rpc.DataError
	if errors.As(err, &data) {
		if text, ok := data.ErrorData().(string); ok {
			if b, err := hexutil.Decode(strings.TrimPrefix(text, "Reverted ")); err == nil &&
				(len(b) == 0 || len(b) >= 4) {
				return b, true
			}
		}
	}
	const executionReverted = 3
	return nil, code.ErrorCode() == executionReverted
}
