package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/gorilla/websocket"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
)

// UnavailableError means that a node could not be asked or did not answer properly. A later retry may succeed.
type UnavailableError struct {
	ChainID uint64
	Op      string // the operation that failed
	Err     error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("chain %d: %s: %v", e.ChainID, e.Op, e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// WrongChainError means that a node of RPC_URL_<chain> serves another chain.
type WrongChainError struct {
	Want, Got uint64
}

func (e *WrongChainError) Error() string {
	return fmt.Sprintf("the node that RPC_URL_%d names serves chain %d: set the variable to a node of chain %d",
		e.Want, e.Got, e.Want)
}

// NoContractError means that an address has no code, so that a call to it has no answer. It is always wrapped in an
// *UnavailableError: the operator can fix a wrong setting, and no event must be lost because of one.
type NoContractError struct {
	ChainID uint64
	Address common.Address
}

func (e *NoContractError) Error() string {
	return fmt.Sprintf("there is no contract at %s on chain %d: check the registry addresses of this chain",
		e.Address, e.ChainID)
}

// statusError is an answer whose HTTP status is a failure. The body and the text of the status are never shown, because
// gateways put keys into them.
type statusError struct {
	code int
	body string // bounded; used only to recognise refusals and the accepted width of a range
}

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the node answered %d %s", e.code, http.StatusText(e.code)))
}

// rpcError is a JSON-RPC error. The message is the node's, shortened.
type rpcError struct {
	code    int
	message string
}

func (e *rpcError) Error() string {
	return fmt.Sprintf("the node answered error %d: %s", e.code, e.message)
}

const maxMessage = 300

// maskError returns an error that can be shown. It removes the node's URL, which net/http puts into every error and
// some nodes put into their answers, and bounds the length. errors.Is still finds the context and net errors.
//
// netguard.Explain describes failures on the way to the node. within is the time limit of the request.
func maskError(err error, within time.Duration, mask *secret.Masker) error {
	var httpErr rpc.HTTPError
	var code rpc.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge), errors.Is(err, ErrTooLarge), errors.Is(err, websocket.ErrReadLimit):
		return ErrTooLarge
	case errors.Is(err, errReading):
		return errReading // without the deadline, as below
	case errors.Is(err, decode.ErrBusy):
		return decode.ErrBusy // without the deadline that ended the wait, since the node answered in time
	case errors.Is(err, errCompressed):
		return errCompressed
	case errors.Is(err, errManyElements):
		return errManyElements
	case errors.As(err, &httpErr):
		return &statusError{httpErr.StatusCode, text.Excerpt(string(httpErr.Body), maxMessage)}
	case errors.As(err, &code):
		return &rpcError{code.ErrorCode(), text.Excerpt(mask.Replace(code.Error()), maxMessage)}
	}
	return netguard.Explain("the node", within, err)
}

// listKeys returns the parts of a node's URL that may be keys: user and password, the header value made of them, path
// segments, and the query and its values. Path segments and query values with fewer than 8 characters are not keys.
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

// FindRevert returns the data of a revert, and whether err is one. A revert is the contract's own answer, not a
// problem with the node. Nodes report it in different ways: as code 3 with the data in hex, under other codes with
// such data, with the word "Reverted" before the data, or without data, by the message "execution reverted".
func FindRevert(err error) ([]byte, bool) {
	code, isCode := errors.AsType[rpc.Error](err)
	if !isCode {
		return nil, false
	}
	if data, ok := errors.AsType[rpc.DataError](err); ok {
		if text, ok := data.ErrorData().(string); ok {
			if b, err := hexutil.Decode(strings.TrimPrefix(text, "Reverted ")); err == nil &&
				(len(b) == 0 || len(b) >= 4) {
				return b, true
			}
		}
	}
	const executionReverted = 3
	return nil, code.ErrorCode() == executionReverted || strings.EqualFold(code.Error(), "execution reverted")
}
