package classify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgconn"
)

func call(e mcpcall.CallError) error {
	if e.Err == nil {
		e.Err = errors.New("it failed")
	}
	if e.Stage == "" {
		e.Stage = mcpcall.StageCall
	}
	return fmt.Errorf("wrapped: %w", &e)
}

// TestClassify checks reasons and consequences. The page of the reasons has their endings (TestReasonsPage).
func TestClassify(t *testing.T) {
	t.Parallel()
	const list, open = mcpcall.StageList, mcpcall.StageOpen
	blocked := &netguard.BlockedError{Address: "10.0.0.1:443"}
	tooMany := netguard.Explain("the agent", 0, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)})
	noTurn := fmt.Errorf("%w: %w", decode.ErrBusy, context.DeadlineExceeded)
	for name, c := range map[string]struct {
		err  error
		want outcome.Reason
		is   string // the agent is to blame, may have moved, may have executed the call, or is unwell
	}{
		// The chain.
		"node away":        {&node.UnavailableError{ChainID: 1, Err: io.EOF}, outcome.ChainUnavailable, ""},
		"wrong node":       {&node.WrongChainError{Want: 1, Got: 2}, outcome.ChainUnavailable, ""},
		"no contract":      {&node.UnavailableError{Err: &node.NoContractError{ChainID: 1}}, outcome.ChainUnavailable, ""},
		"no such agent":    {&chain.NoSuchAgentError{ChainID: 1}, outcome.AgentNotFound, ""},
		"node timed out":   {&node.UnavailableError{Err: context.DeadlineExceeded}, outcome.ChainUnavailable, ""},
		"event forged":     {outcome.Fail(outcome.EventNotFound, "no such event"), outcome.EventNotFound, ""},
		"not confirmed":    {outcome.Pause(outcome.NotConfirmed, time.Second, "wait"), outcome.NotConfirmed, ""},
		"no RPC URL":       {outcome.Fail(outcome.ChainUnconfigured, "set it"), outcome.ChainUnconfigured, ""},
		"no gateway":       {fmt.Errorf("registration document: %w", &ipfs.NoGatewayError{URI: "ar://x"}), outcome.GatewayUnconfigured, ""},
		"revoked":          {outcome.Fail(outcome.Revoked, "gone"), outcome.Revoked, ""},
		"agent disabled":   {outcome.Fail(outcome.AgentDisabled, "enable it"), outcome.AgentDisabled, ""},
		"unreadable job":   {fmt.Errorf("claim: %w", ledger.ErrUnreadableJob), outcome.InvalidJob, ""},
		"sealed otherwise": {fmt.Errorf("open: %w", &secret.DecryptError{Problem: "no key"}), outcome.AuthRequired, ""},

		// Resolving.
		"no uri":          {&resolver.SkipError{Reason: outcome.NoURI}, outcome.NoURI, ""},
		"no document":     {&resolver.SkipError{Reason: outcome.NoDocument, Err: &ipfs.InvalidError{}}, outcome.NoDocument, ""},
		"no endpoint":     {&resolver.SkipError{Reason: outcome.NoMCPEndpoint}, outcome.NoMCPEndpoint, ""},
		"inactive":        {outcome.Agent{Inactive: true}.Judge(), outcome.AgentInactive, ""},
		"unknown agent":   {&resolver.SkipError{Reason: outcome.AgentNotFound, Err: &chain.NoSuchAgentError{}}, outcome.AgentNotFound, ""},
		"ws transport":    {&resolver.TransportRefusedError{Transport: "ws"}, outcome.TransportRefused, "agent"},
		"unbound":         {&resolver.UnboundError{Endpoint: "https://a.example"}, outcome.EndpointUnverified, "agent"},
		"binding unknown": {fmt.Errorf("binding: %w", &ipfs.UnavailableError{Err: context.DeadlineExceeded}), outcome.ContentUnavailable, ""},
		"resolver closed": {resolver.ErrClosed, outcome.InternalError, ""},

		// Content.
		"free text as URI": {&ipfs.NoDocumentError{URI: "hello"}, outcome.NoDocument, ""},
		"not found":        {&ipfs.NotFoundError{URI: "x"}, outcome.ContentUnavailable, ""},
		"proven absent":    {&ipfs.NotFoundError{URI: "x", Proven: true}, outcome.NoDocument, ""},
		"gateways away":    {fmt.Errorf("document: %w", &ipfs.UnavailableError{Err: io.EOF}), outcome.ContentUnavailable, ""},
		"redirects":        {&ipfs.UnavailableError{Err: &netguard.RedirectError{Max: 3}}, outcome.ContentUnavailable, ""},
		"too large":        {&ipfs.TooLargeError{Limit: 1}, outcome.NoDocument, ""},
		"broken CID":       {&ipfs.InvalidError{Why: "x"}, outcome.NoDocument, ""},

		// The guard, in any step.
		"blocked address":       {blocked, outcome.AddressBlocked, "agent"},
		"blocked in a call":     {call(mcpcall.CallError{Stage: open, Err: &url.Error{Err: blocked}}), outcome.AddressBlocked, "agent"},
		"blocked in a fetch":    {&ipfs.UnavailableError{Err: blocked}, outcome.AddressBlocked, "agent"},
		"refused URL":           {&netguard.RefusedURLError{Host: "h"}, outcome.AddressBlocked, "agent"},
		"blocked while opening": {call(mcpcall.CallError{Stage: open, Timeout: true, Err: blocked}), outcome.AddressBlocked, "agent"},

		// MCP. TestAnswers of package delivery has the other HTTP statuses and codes.
		"stdio not listed":        {&mcpcall.TransportRefusedError{Transport: "stdio"}, outcome.TransportRefused, "agent"},
		"does not fit":            {&mcpcall.SchemaError{Path: "value"}, outcome.SchemaMismatch, "agent"},
		"no tool":                 {outcome.Fail(outcome.ToolNotFound, "none"), outcome.ToolNotFound, "agent moved"},
		"tool not offered":        {outcome.Fail(outcome.ToolNotOffered, "none"), outcome.ToolNotOffered, ""},
		"barred tool":             {outcome.Bar(outcome.ToolNotFound, "the operator lists others"), outcome.ToolNotFound, ""},
		"arguments too long":      {call(mcpcall.CallError{Err: &mcpcall.RequestTooLargeError{Size: 2, Limit: 1}}), outcome.InvalidJob, ""},
		"tool error":              {outcome.Fail(outcome.ToolError, "no"), outcome.ToolError, "agent"},
		"hash":                    {outcome.Fail(outcome.HashMismatch, "no"), outcome.HashMismatch, ""},
		"connection refused":      {call(mcpcall.CallError{Stage: open}), outcome.ConnectFailed, "agent moved unwell"},
		"TLS":                     {call(mcpcall.CallError{}), outcome.ConnectFailed, "agent moved unwell"},
		"no turn to decode":       {call(mcpcall.CallError{Stage: list, Timeout: true, Err: noTurn}), outcome.AgentBusy, ""},
		"too many open files":     {call(mcpcall.CallError{Stage: open, Err: tooMany}), outcome.AgentBusy, ""},
		"too many for a file":     {fmt.Errorf("feedback file: %w", &ipfs.UnavailableError{Err: tooMany}), outcome.AgentBusy, ""},
		"too many after the call": {call(mcpcall.CallError{Written: true, Err: tooMany}), outcome.Unknown, "agent unknown unwell"},
		"none for a file":         {fmt.Errorf("feedback file: %w", &ipfs.UnavailableError{Err: noTurn}), outcome.AgentBusy, ""},
		"pool full":               {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrBusy}), outcome.AgentBusy, ""},
		"pool closed":             {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrClosed}), outcome.InternalError, ""},
		"session gone":            {call(mcpcall.CallError{Err: mcpcall.ErrSessionGone}), outcome.ConnectFailed, "agent moved unwell"},
		"further session":         {call(mcpcall.CallError{Stage: open, Status: 400, Code: -32600, Err: mcpcall.ErrOccupied}), outcome.ConnectFailed, "agent moved unwell"},
		"session gone, with code": {call(mcpcall.CallError{Code: -32601, Err: mcpcall.ErrSessionGone}), outcome.ConnectFailed, "agent moved unwell"},
		"handshake timed out":     {call(mcpcall.CallError{Stage: open, Timeout: true, Err: context.DeadlineExceeded}), outcome.Timeout, "agent unwell"},
		"deadline before writing": {call(mcpcall.CallError{Timeout: true, Err: context.DeadlineExceeded}), outcome.Timeout, "agent unwell"},
		"deadline after writing":  {call(mcpcall.CallError{Timeout: true, Written: true, Err: context.DeadlineExceeded}), outcome.Unknown, "agent unknown unwell"},
		"reset after writing":     {call(mcpcall.CallError{Written: true, Err: io.ErrUnexpectedEOF}), outcome.Unknown, "agent unknown unwell"},
		"oversize answer":         {call(mcpcall.CallError{Written: true, Err: &mcpcall.TooLargeError{Limit: 1}}), outcome.Unknown, "agent unknown unwell"},
		"undecodable answer":      {call(mcpcall.CallError{Written: true, Err: &mcpcall.BadAnswerError{}}), outcome.Unknown, "agent unknown unwell"},
		"oversize list":           {call(mcpcall.CallError{Stage: list, Err: &mcpcall.TooLargeError{Limit: 1}}), outcome.BadResponse, "agent"},
		"undecodable handshake":   {call(mcpcall.CallError{Stage: open, Err: &mcpcall.BadAnswerError{}}), outcome.ConnectFailed, "agent moved unwell"},
		"undecodable list":        {call(mcpcall.CallError{Stage: list, Err: &mcpcall.BadAnswerError{}}), outcome.ConnectFailed, "agent moved unwell"},
		"this process gave up":    {call(mcpcall.CallError{Stage: open, Err: context.Canceled}), outcome.InternalError, ""},
		"gave up after writing":   {call(mcpcall.CallError{Written: true, Err: context.Canceled}), outcome.Unknown, "agent unknown unwell"},
		"wants input":             {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{}}), outcome.BadResponse, "agent"},
		"wants patience":          {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{Later: true}}), outcome.RateLimited, "agent"},
		"401":                     {call(mcpcall.CallError{Status: 401, Written: true}), outcome.AuthRequired, "agent"},
		"401 at the handshake":    {call(mcpcall.CallError{Stage: open, Status: 401}), outcome.AuthRequired, "agent"},
		"401 with a code":         {call(mcpcall.CallError{Status: 401, Code: -32601}), outcome.AuthRequired, "agent"},
		"404":                     {call(mcpcall.CallError{Stage: open, Status: 404}), outcome.ConnectFailed, "agent moved unwell"},
		"404 of a list":           {call(mcpcall.CallError{Stage: list, Status: 404}), outcome.ConnectFailed, "agent moved unwell"},
		"421":                     {call(mcpcall.CallError{Status: 421, Written: true}), outcome.ConnectFailed, "agent moved unwell"},
		"404 of a call":           {call(mcpcall.CallError{Status: 404, Written: true}), outcome.ConnectFailed, "agent moved unwell"},
		"404 with a code of HTTP": {call(mcpcall.CallError{Status: 404, Code: 404, Written: true}), outcome.ConnectFailed, "agent moved unwell"},
		"404 with -32601":         {call(mcpcall.CallError{Status: 404, Code: -32601, Written: true}), outcome.BadResponse, "agent moved"},
		"301":                     {call(mcpcall.CallError{Status: 301, Written: true}), outcome.BadResponse, "agent moved"},
		"405":                     {call(mcpcall.CallError{Status: 405, Written: true}), outcome.BadResponse, "agent moved"},
		"410":                     {call(mcpcall.CallError{Status: 410, Written: true}), outcome.BadResponse, "agent moved"},
		"413":                     {call(mcpcall.CallError{Status: 413, Written: true}), outcome.BadResponse, "agent"},
		"408":                     {call(mcpcall.CallError{Status: 408, Written: true}), outcome.ServerError, "agent unwell"},
		"500":                     {call(mcpcall.CallError{Status: 500, Written: true}), outcome.ServerError, "agent unknown unwell"},
		"500 at the handshake":    {call(mcpcall.CallError{Stage: open, Status: 500, Written: true}), outcome.ServerError, "agent unwell"},
		"502":                     {call(mcpcall.CallError{Status: 502, Written: true}), outcome.ServerError, "agent unknown unwell"},
		"503":                     {call(mcpcall.CallError{Status: 503, Written: true}), outcome.ServerError, "agent unwell"},
		"504":                     {call(mcpcall.CallError{Status: 504, Written: true}), outcome.ServerError, "agent unknown unwell"},
		"-32603":                  {call(mcpcall.CallError{Code: -32603, Written: true}), outcome.ServerError, "agent unknown unwell"},
		"429":                     {call(mcpcall.CallError{Status: 429, Written: true}), outcome.RateLimited, "agent"},
		"500 with a code":         {call(mcpcall.CallError{Status: 500, Code: -32602, Written: true}), outcome.ServerError, "agent unknown unwell"},
		"400 with -32000":         {call(mcpcall.CallError{Status: 400, Code: -32000, Written: true}), outcome.BadResponse, "agent"},
		"400 with -32602":         {call(mcpcall.CallError{Status: 400, Code: -32602, Written: true}), outcome.SchemaMismatch, "agent"},
		"-32602 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32602}), outcome.BadResponse, "agent moved"},
		"-32022 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32022}), outcome.BadResponse, "agent moved"},

		// Authorization servers.
		"credential refused":    {fmt.Errorf("renew: %w", &oauth.RefusedError{Code: "invalid_client"}), outcome.AuthRequired, ""},
		"another issuer":        {&oauth.IssuerError{Pinned: "https://a.example"}, outcome.AuthRequired, ""},
		"unusable metadata":     {&oauth.MetadataError{Problem: "no JSON"}, outcome.AuthRequired, ""},
		"login server away":     {&oauth.UnavailableError{Err: io.EOF}, outcome.ConnectFailed, ""},
		"login server is slow":  {&oauth.UnavailableError{Err: fmt.Errorf("get: %w", context.DeadlineExceeded)}, outcome.Timeout, ""},
		"login server is busy":  {&oauth.UnavailableError{Status: 429, Err: io.EOF}, outcome.RateLimited, ""},
		"login server fails":    {&oauth.UnavailableError{Status: 503, Err: io.EOF}, outcome.ServerError, ""},
		"nobody waits for it":   {&oauth.UnavailableError{Err: context.Canceled}, outcome.InternalError, ""},
		"login server's babble": {&oauth.UnavailableError{Status: 200, Err: io.EOF}, outcome.ServerError, ""},

		"anything else":      {errors.New("what is this"), outcome.InternalError, ""},
		"a deadline of ours": {context.DeadlineExceeded, outcome.InternalError, ""},
		"Postgres":           {fmt.Errorf("extend: %w", &pgconn.PgError{Code: "57P01"}), outcome.InternalError, ""},
	} {
		got := Error(c.err)
		got.Pause = 0 // TestClassifyKeepsRequestedWait
		is := func(word string) bool { return slices.Contains(strings.Fields(c.is), word) }
		heraldtest.Equal(t, name, got, outcome.Verdict{Reason: c.want, Ending: c.want.Ending(), Free: c.want.Free(), Text: c.err.Error(),
			AgentFault: is("agent"), Moved: is("moved"), Unknown: is("unknown"), Unwell: is("unwell")})
	}
}

func TestClassifyKeepsRequestedWait(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"agent":        call(mcpcall.CallError{Status: 503, RetryAfter: 15 * time.Second}),
		"gateway":      &ipfs.UnavailableError{RetryAfter: 15 * time.Second, Err: io.EOF},
		"login server": &oauth.UnavailableError{RetryAfter: 15 * time.Second, Err: io.EOF},
	} {
		heraldtest.Equal(t, name, Error(err).RetryAfter, 15*time.Second)
	}
	heraldtest.Equal(t, "pause", Error(outcome.Pause(outcome.NotConfirmed, time.Minute, "")).Pause, time.Minute)
}

func TestReached(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "written", Reached(call(mcpcall.CallError{Written: true})), true)
	for _, err := range []error{call(mcpcall.CallError{}), io.EOF, nil} {
		heraldtest.Equal(t, fmt.Sprint(err), Reached(err), false)
	}
}

func TestNotATool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"-32602":        {call(mcpcall.CallError{Code: -32602}), true},
		"-32601":        {call(mcpcall.CallError{Code: -32601, Status: 404}), true},
		"in a 500":      {call(mcpcall.CallError{Code: -32601, Status: 500}), false},
		"in a 401":      {call(mcpcall.CallError{Code: -32602, Status: 401}), false},
		"internal":      {call(mcpcall.CallError{Code: -32603}), false},
		"without error": {nil, false},
	} {
		heraldtest.Equal(t, name, NotATool(c.err), c.want)
	}
}

func TestUnstorable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"22P05": true, "22003": true, "23514": true, "54000": true,
		"57P01": false, "40001": false, "53100": false, "25006": false, "08006": false, "": false} {
		heraldtest.Equal(t, "of code "+code, Unstorable(fmt.Errorf("record: %w", &pgconn.PgError{Code: code})), want)
	}
	if Unstorable(io.EOF) || Unstorable(nil) {
		t.Error("a network error is no refusal of data")
	}
}

func TestLimited(t *testing.T) {
	t.Parallel()
	for r, want := range map[outcome.Reason]bool{outcome.ChainUnavailable: true, outcome.AgentBusy: true, outcome.Throttled: true, outcome.BreakerOpen: true, outcome.OverBudget: true,
		outcome.NotConfirmed: false, outcome.BehindEarlier: false, outcome.AuthRequired: false, outcome.ConnectFailed: false} {
		heraldtest.Equal(t, string(r), Error(outcome.Pause(r, time.Second, "")).Limited(), want)
	}
}
