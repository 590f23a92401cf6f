package classify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
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

func TestClassify(t *testing.T) {
	t.Parallel()
	const list, open = mcpcall.StageList, mcpcall.StageOpen
	blocked := &netguard.BlockedError{Address: "10.0.0.1:443"}
	noTurn := fmt.Errorf("%w: %w", decode.ErrBusy, context.DeadlineExceeded)
	for name, c := range map[string]struct {
		err   error
		want  outcome.Reason
		end   outcome.Status
		free  bool
		agent bool // the agent is to blame
	}{
		// The chain.
		"node away":        {&node.UnavailableError{ChainID: 1, Err: io.EOF}, outcome.ChainUnavailable, outcome.Waiting, true, false},
		"wrong node":       {&node.WrongChainError{Want: 1, Got: 2}, outcome.ChainUnavailable, outcome.Waiting, true, false},
		"no contract":      {&node.UnavailableError{Err: &node.NoContractError{ChainID: 1}}, outcome.ChainUnavailable, outcome.Waiting, true, false},
		"no such agent":    {&chain.NoSuchAgentError{ChainID: 1}, outcome.AgentNotFound, outcome.Skipped, false, false},
		"node timed out":   {&node.UnavailableError{Err: context.DeadlineExceeded}, outcome.ChainUnavailable, outcome.Waiting, true, false},
		"event forged":     {outcome.Fail(outcome.EventNotFound, "no such event"), outcome.EventNotFound, outcome.Rejected, false, false},
		"not confirmed":    {outcome.Pause(outcome.NotConfirmed, time.Second, "wait"), outcome.NotConfirmed, outcome.Waiting, true, false},
		"no RPC URL":       {outcome.Fail(outcome.ChainUnconfigured, "set it"), outcome.ChainUnconfigured, outcome.Held, true, false},
		"no gateway":       {fmt.Errorf("registration document: %w", &ipfs.NoGatewayError{URI: "ar://x"}), outcome.GatewayUnconfigured, outcome.Held, true, false},
		"revoked":          {outcome.Fail(outcome.Revoked, "gone"), outcome.Revoked, outcome.Skipped, false, false},
		"agent disabled":   {outcome.Fail(outcome.AgentDisabled, "enable it"), outcome.AgentDisabled, outcome.Held, true, false},
		"unreadable job":   {fmt.Errorf("claim: %w", ledger.ErrUnreadableJob), outcome.InvalidJob, outcome.Rejected, false, false},
		"sealed otherwise": {fmt.Errorf("open: %w", &secret.DecryptError{Problem: "no key"}), outcome.AuthRequired, outcome.Held, true, false},

		// Resolving.
		"no uri":          {&resolver.SkipError{Reason: outcome.NoURI}, outcome.NoURI, outcome.Skipped, false, false},
		"no document":     {&resolver.SkipError{Reason: outcome.NoDocument, Err: &ipfs.InvalidError{}}, outcome.NoDocument, outcome.Skipped, false, false},
		"no endpoint":     {&resolver.SkipError{Reason: outcome.NoMCPEndpoint}, outcome.NoMCPEndpoint, outcome.Skipped, false, false},
		"inactive":        {outcome.Agent{Inactive: true}.Judge(), outcome.AgentInactive, outcome.Skipped, false, false},
		"unknown agent":   {&resolver.SkipError{Reason: outcome.AgentNotFound, Err: &chain.NoSuchAgentError{}}, outcome.AgentNotFound, outcome.Skipped, false, false},
		"ws transport":    {&resolver.TransportRefusedError{Transport: "ws"}, outcome.TransportRefused, outcome.Rejected, false, true},
		"unbound":         {&resolver.UnboundError{Endpoint: "https://a.example"}, outcome.EndpointUnverified, outcome.Rejected, false, true},
		"binding unknown": {fmt.Errorf("binding: %w", &ipfs.UnavailableError{Err: context.DeadlineExceeded}), outcome.ContentUnavailable, outcome.Waiting, false, false},
		"resolver closed": {resolver.ErrClosed, outcome.InternalError, outcome.Waiting, false, false},

		// Content.
		"free text as URI": {&ipfs.NoDocumentError{URI: "hello"}, outcome.NoDocument, outcome.Skipped, false, false},
		"not found":        {&ipfs.NotFoundError{URI: "x"}, outcome.ContentUnavailable, outcome.Waiting, false, false},
		"proven absent":    {&ipfs.NotFoundError{URI: "x", Proven: true}, outcome.NoDocument, outcome.Skipped, false, false},
		"gateways away":    {fmt.Errorf("document: %w", &ipfs.UnavailableError{Err: io.EOF}), outcome.ContentUnavailable, outcome.Waiting, false, false},
		"redirects":        {&ipfs.UnavailableError{Err: &netguard.RedirectError{Max: 3}}, outcome.ContentUnavailable, outcome.Waiting, false, false},
		"too large":        {&ipfs.TooLargeError{Limit: 1}, outcome.NoDocument, outcome.Skipped, false, false},
		"broken CID":       {&ipfs.InvalidError{Why: "x"}, outcome.NoDocument, outcome.Skipped, false, false},

		// The guard, in any step.
		"blocked address":       {blocked, outcome.AddressBlocked, outcome.Rejected, false, true},
		"blocked in a call":     {call(mcpcall.CallError{Stage: open, Err: &url.Error{Err: blocked}}), outcome.AddressBlocked, outcome.Rejected, false, true},
		"blocked in a fetch":    {&ipfs.UnavailableError{Err: blocked}, outcome.AddressBlocked, outcome.Rejected, false, true},
		"refused URL":           {&netguard.RefusedURLError{Host: "h"}, outcome.AddressBlocked, outcome.Rejected, false, true},
		"blocked while opening": {call(mcpcall.CallError{Stage: open, Timeout: true, Err: blocked}), outcome.AddressBlocked, outcome.Rejected, false, true},

		// MCP. TestAnswers of package delivery has the other HTTP statuses and codes.
		"stdio not listed":        {&mcpcall.TransportRefusedError{Transport: "stdio"}, outcome.TransportRefused, outcome.Rejected, false, true},
		"does not fit":            {&mcpcall.SchemaError{Path: "value"}, outcome.SchemaMismatch, outcome.Rejected, false, true},
		"no tool":                 {outcome.Fail(outcome.ToolNotFound, "none"), outcome.ToolNotFound, outcome.Rejected, false, true},
		"tool not offered":        {outcome.Fail(outcome.ToolNotOffered, "none"), outcome.ToolNotOffered, outcome.Skipped, false, false},
		"barred tool":             {outcome.Bar(outcome.ToolNotFound, "the operator lists others"), outcome.ToolNotFound, outcome.Rejected, false, false},
		"arguments too long":      {call(mcpcall.CallError{Err: &mcpcall.RequestTooLargeError{Size: 2, Limit: 1}}), outcome.InvalidJob, outcome.Rejected, false, false},
		"tool error":              {outcome.Fail(outcome.ToolError, "no"), outcome.ToolError, outcome.Rejected, false, true},
		"hash":                    {outcome.Fail(outcome.HashMismatch, "no"), outcome.HashMismatch, outcome.Rejected, false, false},
		"connection refused":      {call(mcpcall.CallError{Stage: open}), outcome.ConnectFailed, outcome.Waiting, false, true},
		"TLS":                     {call(mcpcall.CallError{}), outcome.ConnectFailed, outcome.Waiting, false, true},
		"no turn to decode":       {call(mcpcall.CallError{Stage: list, Timeout: true, Err: noTurn}), outcome.AgentBusy, outcome.Waiting, true, false},
		"none for a file":         {fmt.Errorf("feedback file: %w", &ipfs.UnavailableError{Err: noTurn}), outcome.AgentBusy, outcome.Waiting, true, false},
		"pool full":               {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrBusy}), outcome.AgentBusy, outcome.Waiting, true, false},
		"pool closed":             {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrClosed}), outcome.InternalError, outcome.Waiting, false, false},
		"session gone":            {call(mcpcall.CallError{Err: mcpcall.ErrSessionGone}), outcome.ConnectFailed, outcome.Waiting, false, true},
		"session gone, with code": {call(mcpcall.CallError{Code: -32601, Err: mcpcall.ErrSessionGone}), outcome.ConnectFailed, outcome.Waiting, false, true},
		"handshake timed out":     {call(mcpcall.CallError{Stage: open, Timeout: true, Err: context.DeadlineExceeded}), outcome.Timeout, outcome.Waiting, false, true},
		"deadline before writing": {call(mcpcall.CallError{Timeout: true, Err: context.DeadlineExceeded}), outcome.Timeout, outcome.Waiting, false, true},
		"deadline after writing":  {call(mcpcall.CallError{Timeout: true, Written: true, Err: context.DeadlineExceeded}), outcome.Unknown, outcome.Waiting, false, true},
		"reset after writing":     {call(mcpcall.CallError{Written: true, Err: io.ErrUnexpectedEOF}), outcome.Unknown, outcome.Waiting, false, true},
		"oversize answer":         {call(mcpcall.CallError{Written: true, Err: &mcpcall.TooLargeError{Limit: 1}}), outcome.Unknown, outcome.Waiting, false, true},
		"undecodable answer":      {call(mcpcall.CallError{Written: true, Err: &mcpcall.BadAnswerError{}}), outcome.Unknown, outcome.Waiting, false, true},
		"oversize list":           {call(mcpcall.CallError{Stage: list, Err: &mcpcall.TooLargeError{Limit: 1}}), outcome.BadResponse, outcome.Rejected, false, true},
		"undecodable handshake":   {call(mcpcall.CallError{Stage: open, Err: &mcpcall.BadAnswerError{}}), outcome.BadResponse, outcome.Rejected, false, true},
		"this process gave up":    {call(mcpcall.CallError{Stage: open, Err: context.Canceled}), outcome.InternalError, outcome.Waiting, false, false},
		"gave up after writing":   {call(mcpcall.CallError{Written: true, Err: context.Canceled}), outcome.Unknown, outcome.Waiting, false, true},
		"wants input":             {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{}}), outcome.BadResponse, outcome.Rejected, false, true},
		"wants patience":          {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{Later: true}}), outcome.RateLimited, outcome.Waiting, false, true},
		"401":                     {call(mcpcall.CallError{Status: 401, Written: true}), outcome.AuthRequired, outcome.Held, true, true},
		"401 at the handshake":    {call(mcpcall.CallError{Stage: open, Status: 401}), outcome.AuthRequired, outcome.Held, true, true},
		"401 with a code":         {call(mcpcall.CallError{Status: 401, Code: -32601}), outcome.AuthRequired, outcome.Held, true, true},
		"404":                     {call(mcpcall.CallError{Stage: open, Status: 404}), outcome.BadResponse, outcome.Rejected, false, true},
		"429":                     {call(mcpcall.CallError{Status: 429, Written: true}), outcome.RateLimited, outcome.Waiting, false, true},
		"500 with a code":         {call(mcpcall.CallError{Status: 500, Code: -32602, Written: true}), outcome.ServerError, outcome.Waiting, false, true},
		"400 with -32000":         {call(mcpcall.CallError{Status: 400, Code: -32000, Written: true}), outcome.BadResponse, outcome.Rejected, false, true},
		"400 with -32602":         {call(mcpcall.CallError{Status: 400, Code: -32602, Written: true}), outcome.SchemaMismatch, outcome.Rejected, false, true},
		"-32602 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32602}), outcome.BadResponse, outcome.Rejected, false, true},
		"-32022 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32022}), outcome.BadResponse, outcome.Rejected, false, true},

		// Authorization servers.
		"credential refused":    {fmt.Errorf("renew: %w", &oauth.RefusedError{Code: "invalid_client"}), outcome.AuthRequired, outcome.Held, true, false},
		"another issuer":        {&oauth.IssuerError{Pinned: "https://a.example"}, outcome.AuthRequired, outcome.Held, true, false},
		"unusable metadata":     {&oauth.MetadataError{Problem: "no JSON"}, outcome.AuthRequired, outcome.Held, true, false},
		"login server away":     {&oauth.UnavailableError{Err: io.EOF}, outcome.ConnectFailed, outcome.Waiting, false, false},
		"login server is slow":  {&oauth.UnavailableError{Err: fmt.Errorf("get: %w", context.DeadlineExceeded)}, outcome.Timeout, outcome.Waiting, false, false},
		"login server is busy":  {&oauth.UnavailableError{Status: 429, Err: io.EOF}, outcome.RateLimited, outcome.Waiting, false, false},
		"login server fails":    {&oauth.UnavailableError{Status: 503, Err: io.EOF}, outcome.ServerError, outcome.Waiting, false, false},
		"nobody waits for it":   {&oauth.UnavailableError{Err: context.Canceled}, outcome.InternalError, outcome.Waiting, false, false},
		"login server's babble": {&oauth.UnavailableError{Status: 200, Err: io.EOF}, outcome.ServerError, outcome.Waiting, false, false},

		"anything else":      {errors.New("what is this"), outcome.InternalError, outcome.Waiting, false, false},
		"a deadline of ours": {context.DeadlineExceeded, outcome.InternalError, outcome.Waiting, false, false},
		"Postgres":           {fmt.Errorf("extend: %w", &pgconn.PgError{Code: "57P01"}), outcome.InternalError, outcome.Waiting, false, false},
	} {
		v := Error(c.err)
		if v.Reason != c.want || v.Ending != c.end || v.Free != c.free || v.AgentFault != c.agent {
			t.Errorf("%s: %s %s free=%t agent=%t, want %s %s free=%t agent=%t", name,
				v.Reason, v.Ending, v.Free, v.AgentFault, c.want, c.end, c.free, c.agent)
		}
		if v.Text != c.err.Error() {
			t.Errorf("%s: text %q", name, v.Text)
		}
	}
}

func TestClassifyKeepsRequestedWait(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"agent":   call(mcpcall.CallError{Status: 503, RetryAfter: 15 * time.Second}),
		"gateway": &ipfs.UnavailableError{RetryAfter: 15 * time.Second, Err: io.EOF},
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

// TestClassifyConsequences: Classify also derives whether the call may have had an effect, whether the agent
// may have moved, and whether its endpoint is unwell.
func TestClassifyConsequences(t *testing.T) {
	t.Parallel()
	open := mcpcall.StageOpen
	for name, c := range map[string]struct {
		err                    error
		unknown, moved, unwell bool
	}{
		"unknown":          {call(mcpcall.CallError{Written: true, Err: io.ErrUnexpectedEOF}), true, false, true},
		"500":              {call(mcpcall.CallError{Status: 500, Written: true}), true, false, true},
		"502":              {call(mcpcall.CallError{Status: 502, Written: true}), true, false, true},
		"504":              {call(mcpcall.CallError{Status: 504, Written: true}), true, false, true},
		"-32603":           {call(mcpcall.CallError{Code: -32603, Written: true}), true, false, true},
		"500 at handshake": {call(mcpcall.CallError{Stage: open, Status: 500, Written: true}), false, false, true},
		"503":              {call(mcpcall.CallError{Status: 503, Written: true}), false, false, true},
		"408":              {call(mcpcall.CallError{Status: 408, Written: true}), false, false, true},
		"refused":          {call(mcpcall.CallError{Stage: open}), false, true, true},
		"timeout":          {call(mcpcall.CallError{Stage: open, Timeout: true, Err: context.DeadlineExceeded}), false, false, true},
		"404":              {call(mcpcall.CallError{Status: 404, Written: true}), false, true, false},
		"410":              {call(mcpcall.CallError{Status: 410, Written: true}), false, true, false},
		"405":              {call(mcpcall.CallError{Status: 405, Written: true}), false, true, false},
		"413":              {call(mcpcall.CallError{Status: 413, Written: true}), false, false, false},
		"a parked domain":  {call(mcpcall.CallError{Stage: open, Err: &mcpcall.BadAnswerError{}}), false, true, false},
		"301":              {call(mcpcall.CallError{Status: 301, Written: true}), false, true, false},
		"no tool":          {outcome.Fail(outcome.ToolNotFound, "none"), false, true, false},
		"429":              {call(mcpcall.CallError{Status: 429, Written: true}), false, false, false},
		"tool error":       {outcome.Fail(outcome.ToolError, "no"), false, false, false},
		"ours":             {io.EOF, false, false, false},
	} {
		if v := Error(c.err); v.Unknown != c.unknown || v.Moved != c.moved || v.Unwell != c.unwell {
			t.Errorf("%s: unknown %t moved %t unwell %t, want %t %t %t", name, v.Unknown, v.Moved, v.Unwell, c.unknown, c.moved, c.unwell)
		}
	}
}

func TestLimited(t *testing.T) {
	t.Parallel()
	for r, want := range map[outcome.Reason]bool{outcome.ChainUnavailable: true, outcome.AgentBusy: true, outcome.Throttled: true, outcome.BreakerOpen: true, outcome.OverBudget: true,
		outcome.NotConfirmed: false, outcome.BehindEarlier: false, outcome.AuthRequired: false, outcome.ConnectFailed: false} {
		heraldtest.Equal(t, string(r), Error(outcome.Pause(r, time.Second, "")).Limited(), want)
	}
}

// TestAuthorizationServerSilenceBlamesNoAgent: an authorization server without an answer does not make the agent's
// endpoint unwell or moved.
func TestAuthorizationServerSilenceBlamesNoAgent(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 429, 500} {
		v := Error(fmt.Errorf("renew: %w", &oauth.UnavailableError{Status: status, RetryAfter: time.Minute, Err: errors.New("no")}))
		if v.Unwell || v.Moved || v.Unknown || v.AgentFault || v.RetryAfter != time.Minute {
			t.Errorf("%d: %+v", status, v)
		}
	}
}
