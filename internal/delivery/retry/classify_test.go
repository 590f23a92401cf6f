package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
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
		want  Reason
		end   Ending
		free  bool
		agent bool // the agent is to blame
	}{
		// The chain.
		"node away":        {&chain.UnavailableError{ChainID: 1, Err: io.EOF}, ChainUnavailable, Wait, true, false},
		"wrong node":       {&chain.WrongChainError{Want: 1, Got: 2}, ChainUnavailable, Wait, true, false},
		"no contract":      {&chain.UnavailableError{Err: &chain.NoContractError{ChainID: 1}}, ChainUnavailable, Wait, true, false},
		"no such agent":    {&chain.NoSuchAgentError{ChainID: 1}, AgentNotFound, Skip, false, false},
		"node timed out":   {&chain.UnavailableError{Err: context.DeadlineExceeded}, ChainUnavailable, Wait, true, false},
		"event forged":     {Fail(EventNotFound, "no such event"), EventNotFound, Reject, false, false},
		"not confirmed":    {Pause(NotConfirmed, time.Second, "wait"), NotConfirmed, Wait, true, false},
		"no RPC URL":       {Fail(ChainUnconfigured, "set it"), ChainUnconfigured, Hold, true, false},
		"no gateway":       {fmt.Errorf("registration document: %w", &ipfs.NoGatewayError{URI: "ar://x"}), GatewayUnconfigured, Hold, true, false},
		"revoked":          {Fail(Revoked, "gone"), Revoked, Skip, false, false},
		"agent disabled":   {Fail(AgentDisabled, "enable it"), AgentDisabled, Hold, true, false},
		"unreadable job":   {fmt.Errorf("claim: %w", store.ErrUnreadableJob), InvalidJob, Reject, false, false},
		"sealed otherwise": {fmt.Errorf("open: %w", &secret.DecryptError{Problem: "no key"}), AuthRequired, Hold, true, false},

		// Resolving.
		"no uri":          {&resolver.SkipError{Reason: resolver.NoURI}, NoURI, Skip, false, false},
		"no document":     {&resolver.SkipError{Reason: resolver.NoDocument, Err: &ipfs.InvalidError{}}, NoDocument, Skip, false, false},
		"no endpoint":     {&resolver.SkipError{Reason: resolver.NoMCPEndpoint}, NoMCPEndpoint, Skip, false, false},
		"inactive":        {&resolver.SkipError{Reason: resolver.AgentInactive}, AgentInactive, Skip, false, false},
		"unknown agent":   {&resolver.SkipError{Reason: resolver.AgentNotFound, Err: &chain.NoSuchAgentError{}}, AgentNotFound, Skip, false, false},
		"ws transport":    {&resolver.TransportRefusedError{Transport: "ws"}, TransportRefused, Reject, false, true},
		"unbound":         {&resolver.UnboundError{Endpoint: "https://a.example"}, EndpointUnverified, Reject, false, true},
		"binding unknown": {fmt.Errorf("binding: %w", &ipfs.UnavailableError{Err: context.DeadlineExceeded}), ContentUnavailable, Wait, false, false},
		"resolver closed": {resolver.ErrClosed, InternalError, Wait, false, false},

		// Content.
		"free text as URI": {&ipfs.NoDocumentError{URI: "hello"}, NoDocument, Skip, false, false},
		"not found":        {&ipfs.NotFoundError{URI: "x"}, ContentUnavailable, Wait, false, false},
		"proven absent":    {&ipfs.NotFoundError{URI: "x", Proven: true}, NoDocument, Skip, false, false},
		"gateways away":    {fmt.Errorf("document: %w", &ipfs.UnavailableError{Err: io.EOF}), ContentUnavailable, Wait, false, false},
		"redirects":        {&ipfs.UnavailableError{Err: &netguard.RedirectError{Max: 3}}, ContentUnavailable, Wait, false, false},
		"too large":        {&ipfs.TooLargeError{Limit: 1}, NoDocument, Skip, false, false},
		"broken CID":       {&ipfs.InvalidError{Why: "x"}, NoDocument, Skip, false, false},

		// The guard, whoever ran into it.
		"blocked address":       {blocked, AddressBlocked, Reject, false, true},
		"blocked in a call":     {call(mcpcall.CallError{Stage: open, Err: &url.Error{Err: blocked}}), AddressBlocked, Reject, false, true},
		"blocked in a fetch":    {&ipfs.UnavailableError{Err: blocked}, AddressBlocked, Reject, false, true},
		"refused URL":           {&netguard.RefusedURLError{Host: "h"}, AddressBlocked, Reject, false, true},
		"blocked while opening": {call(mcpcall.CallError{Stage: open, Timeout: true, Err: blocked}), AddressBlocked, Reject, false, true},

		// MCP: reference mcp-client §6.
		"stdio not listed":        {&mcpcall.TransportRefusedError{Transport: "stdio"}, TransportRefused, Reject, false, true},
		"does not fit":            {&mcpcall.SchemaError{Path: "value"}, SchemaMismatch, Reject, false, true},
		"no tool":                 {Fail(ToolNotFound, "none"), ToolNotFound, Reject, false, true},
		"tool not offered":        {Fail(ToolNotOffered, "none"), ToolNotOffered, Skip, false, false},
		"barred tool":             {Bar(ToolNotFound, "the operator lists others"), ToolNotFound, Reject, false, false},
		"arguments too long":      {call(mcpcall.CallError{Err: &mcpcall.RequestTooLargeError{Size: 2, Limit: 1}}), InvalidJob, Reject, false, false},
		"tool error":              {Fail(ToolError, "no"), ToolError, Reject, false, true},
		"hash":                    {Fail(HashMismatch, "no"), HashMismatch, Reject, false, false},
		"connection refused":      {call(mcpcall.CallError{Stage: open}), ConnectFailed, Wait, false, true},
		"TLS":                     {call(mcpcall.CallError{}), ConnectFailed, Wait, false, true},
		"no turn to decode":       {call(mcpcall.CallError{Stage: list, Timeout: true, Err: noTurn}), AgentBusy, Wait, true, false},
		"none for a file":         {fmt.Errorf("feedback file: %w", &ipfs.UnavailableError{Err: noTurn}), AgentBusy, Wait, true, false},
		"pool full":               {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrBusy}), AgentBusy, Wait, true, false},
		"pool closed":             {call(mcpcall.CallError{Stage: open, Err: mcpcall.ErrClosed}), InternalError, Wait, false, false},
		"session gone":            {call(mcpcall.CallError{Err: mcpcall.ErrSessionGone}), ConnectFailed, Wait, false, true},
		"session gone, with code": {call(mcpcall.CallError{Code: -32601, Err: mcpcall.ErrSessionGone}), ConnectFailed, Wait, false, true},
		"handshake timed out":     {call(mcpcall.CallError{Stage: open, Timeout: true, Err: context.DeadlineExceeded}), Timeout, Wait, false, true},
		"deadline before writing": {call(mcpcall.CallError{Timeout: true, Err: context.DeadlineExceeded}), Timeout, Wait, false, true},
		"deadline after writing":  {call(mcpcall.CallError{Timeout: true, Written: true, Err: context.DeadlineExceeded}), OutcomeUnknown, Wait, false, true},
		"reset after writing":     {call(mcpcall.CallError{Written: true, Err: io.ErrUnexpectedEOF}), OutcomeUnknown, Wait, false, true},
		"oversize answer":         {call(mcpcall.CallError{Written: true, Err: &mcpcall.TooLargeError{Limit: 1}}), OutcomeUnknown, Wait, false, true},
		"undecodable answer":      {call(mcpcall.CallError{Written: true, Err: &mcpcall.BadAnswerError{}}), OutcomeUnknown, Wait, false, true},
		"oversize list":           {call(mcpcall.CallError{Stage: list, Err: &mcpcall.TooLargeError{Limit: 1}}), BadResponse, Reject, false, true},
		"undecodable handshake":   {call(mcpcall.CallError{Stage: open, Err: &mcpcall.BadAnswerError{}}), BadResponse, Reject, false, true},
		"this process gave up":    {call(mcpcall.CallError{Stage: open, Err: context.Canceled}), InternalError, Wait, false, false},
		"gave up after writing":   {call(mcpcall.CallError{Written: true, Err: context.Canceled}), OutcomeUnknown, Wait, false, true},
		"wants input":             {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{}}), BadResponse, Reject, false, true},
		"wants patience":          {call(mcpcall.CallError{Written: true, Err: &mcpcall.InputRequiredError{Later: true}}), RateLimited, Wait, false, true},
		"301":                     {call(mcpcall.CallError{Status: 301, Written: true}), BadResponse, Reject, false, true},
		"400":                     {call(mcpcall.CallError{Status: 400, Written: true}), BadResponse, Reject, false, true},
		"401":                     {call(mcpcall.CallError{Status: 401, Written: true}), AuthRequired, Hold, true, true},
		"401 at the handshake":    {call(mcpcall.CallError{Stage: open, Status: 401}), AuthRequired, Hold, true, true},
		"401 with a code":         {call(mcpcall.CallError{Status: 401, Code: -32601}), AuthRequired, Hold, true, true},
		"403":                     {call(mcpcall.CallError{Status: 403, Written: true}), AuthRequired, Hold, true, true},
		"404":                     {call(mcpcall.CallError{Stage: open, Status: 404}), BadResponse, Reject, false, true},
		"408":                     {call(mcpcall.CallError{Status: 408, Written: true}), ServerError, Wait, false, true},
		"413":                     {call(mcpcall.CallError{Status: 413, Written: true}), BadResponse, Reject, false, true},
		"422":                     {call(mcpcall.CallError{Status: 422, Written: true}), BadResponse, Reject, false, true},
		"429":                     {call(mcpcall.CallError{Status: 429, Written: true}), RateLimited, Wait, false, true},
		"500":                     {call(mcpcall.CallError{Status: 500, Written: true}), ServerError, Wait, false, true},
		"500 with a code":         {call(mcpcall.CallError{Status: 500, Code: -32602, Written: true}), ServerError, Wait, false, true},
		"502":                     {call(mcpcall.CallError{Status: 502, Written: true}), ServerError, Wait, false, true},
		"503":                     {call(mcpcall.CallError{Status: 503, Written: true}), ServerError, Wait, false, true},
		"504":                     {call(mcpcall.CallError{Status: 504, Written: true}), ServerError, Wait, false, true},
		"-32603":                  {call(mcpcall.CallError{Code: -32603, Written: true}), ServerError, Wait, false, true},
		"-32000":                  {call(mcpcall.CallError{Code: -32000, Written: true}), ServerError, Wait, false, true},
		"an unknown code":         {call(mcpcall.CallError{Code: 7, Written: true}), ServerError, Wait, false, true},
		"400 with -32000":         {call(mcpcall.CallError{Status: 400, Code: -32000, Written: true}), BadResponse, Reject, false, true},
		"-32602":                  {call(mcpcall.CallError{Code: -32602, Written: true}), SchemaMismatch, Reject, false, true},
		"400 with -32602":         {call(mcpcall.CallError{Status: 400, Code: -32602, Written: true}), SchemaMismatch, Reject, false, true},
		"-32602 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32602}), BadResponse, Reject, false, true},
		"-32601":                  {call(mcpcall.CallError{Code: -32601, Written: true}), BadResponse, Reject, false, true},
		"-32600":                  {call(mcpcall.CallError{Code: -32600, Written: true}), BadResponse, Reject, false, true},
		"-32700":                  {call(mcpcall.CallError{Code: -32700, Written: true}), BadResponse, Reject, false, true},
		"-32020":                  {call(mcpcall.CallError{Code: -32020, Written: true}), BadResponse, Reject, false, true},
		"-32022 at the handshake": {call(mcpcall.CallError{Stage: open, Code: -32022}), BadResponse, Reject, false, true},

		// Authorization servers.
		"credential refused":    {fmt.Errorf("renew: %w", &oauth.RefusedError{Code: "invalid_client"}), AuthRequired, Hold, true, false},
		"another issuer":        {&oauth.IssuerError{Pinned: "https://a.example"}, AuthRequired, Hold, true, false},
		"unusable metadata":     {&oauth.MetadataError{Problem: "no JSON"}, AuthRequired, Hold, true, false},
		"login server away":     {&oauth.UnavailableError{Err: io.EOF}, ConnectFailed, Wait, false, false},
		"login server is slow":  {&oauth.UnavailableError{Err: fmt.Errorf("get: %w", context.DeadlineExceeded)}, Timeout, Wait, false, false},
		"login server is busy":  {&oauth.UnavailableError{Status: 429, Err: io.EOF}, RateLimited, Wait, false, false},
		"login server fails":    {&oauth.UnavailableError{Status: 503, Err: io.EOF}, ServerError, Wait, false, false},
		"nobody waits for it":   {&oauth.UnavailableError{Err: context.Canceled}, InternalError, Wait, false, false},
		"login server's babble": {&oauth.UnavailableError{Status: 200, Err: io.EOF}, ServerError, Wait, false, false},

		"anything else":      {errors.New("what is this"), InternalError, Wait, false, false},
		"a deadline of ours": {context.DeadlineExceeded, InternalError, Wait, false, false},
		"Postgres":           {fmt.Errorf("extend: %w", &pgconn.PgError{Code: "57P01"}), InternalError, Wait, false, false},
	} {
		v := Classify(c.err)
		if v.Reason != c.want || v.Ending != c.end || v.Free != c.free || v.AgentFault != c.agent {
			t.Errorf("%s: %s %s free=%t agent=%t, want %s %s free=%t agent=%t", name,
				v.Reason, v.Ending, v.Free, v.AgentFault, c.want, c.end, c.free, c.agent)
		}
		if v.Text != c.err.Error() {
			t.Errorf("%s: text %q", name, v.Text)
		}
	}
}

func TestClassifyKeepsWhatTheOtherSideAskedFor(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"agent":   call(mcpcall.CallError{Status: 503, RetryAfter: 15 * time.Second}),
		"gateway": &ipfs.UnavailableError{RetryAfter: 15 * time.Second, Err: io.EOF},
	} {
		if v := Classify(err); v.RetryAfter != 15*time.Second {
			t.Errorf("%s: %s", name, v.RetryAfter)
		}
	}
	if v := Classify(Pause(NotConfirmed, time.Minute, "")); v.Pause != time.Minute {
		t.Errorf("pause %s", v.Pause)
	}
}

// Every reason is of the closed list of DESIGN §4, and ends as its table says.
func TestEveryReasonHasItsEnding(t *testing.T) {
	t.Parallel()
	missing := slices.DeleteFunc(Reasons(), func(r Reason) bool { // these end no attempt
		return slices.Contains([]Reason{Operator, Reorg, Expired}, r)
	})
	for ending, reasons := range map[Ending][]Reason{
		Skip: {NoURI, NoDocument, NoMCPEndpoint, AgentInactive, AgentNotFound, Revoked, ToolNotOffered, NeverDelivered},
		Reject: {InvalidJob, EventNotFound, ToolNotFound, SchemaMismatch, HashMismatch, EndpointUnverified, AddressBlocked,
			TransportRefused, AuthFailed, ToolError, BadResponse},
		Hold: {AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured},
		Wait: {NotConfirmed, ChainUnavailable, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget,
			ContentUnavailable, ConnectFailed, Timeout, RateLimited, ServerError, OutcomeUnknown, InternalError},
	} {
		for _, r := range reasons {
			missing = slices.DeleteFunc(missing, func(m Reason) bool { return m == r })
			v := Classify(Fail(r, "text"))
			free := ending == Hold
			switch r {
			case NotConfirmed, ChainUnavailable, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget:
				free = true
			}
			if v.Ending != ending || v.Free != free {
				t.Errorf("%s: %s, free %t; want %s, free %t", r, v.Ending, v.Free, ending, free)
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("say here how an attempt ends for %v", missing)
	}
}

func TestReached(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"written":     {call(mcpcall.CallError{Written: true}), true},
		"not written": {call(mcpcall.CallError{}), false},
		"other":       {io.EOF, false},
		"none":        {nil, false},
	} {
		if got := Reached(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
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
		if got := NotATool(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestUnstorable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"22P05": true, "22003": true, "23514": true, "54000": true,
		"57P01": false, "40001": false, "53100": false, "25006": false, "08006": false, "": false} {
		if got := Unstorable(fmt.Errorf("record: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%q: %t", code, got)
		}
	}
	if Unstorable(io.EOF) || Unstorable(nil) {
		t.Error("a network error is no refusal of data")
	}
}

// What a call may have done, where the agent may be now, and how its endpoint does, are asked of the same error.
func TestClassifyTellsWhatElseFollows(t *testing.T) {
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
		"301":              {call(mcpcall.CallError{Status: 301, Written: true}), false, true, false},
		"no tool":          {Fail(ToolNotFound, "none"), false, true, false},
		"429":              {call(mcpcall.CallError{Status: 429, Written: true}), false, false, false},
		"tool error":       {Fail(ToolError, "no"), false, false, false},
		"ours":             {io.EOF, false, false, false},
	} {
		if v := Classify(c.err); v.Unknown != c.unknown || v.Moved != c.moved || v.Unwell != c.unwell {
			t.Errorf("%s: unknown %t moved %t unwell %t, want %t %t %t", name, v.Unknown, v.Moved, v.Unwell, c.unknown, c.moved, c.unwell)
		}
	}
}

func TestLimited(t *testing.T) {
	t.Parallel()
	for r, want := range map[Reason]bool{ChainUnavailable: true, AgentBusy: true, Throttled: true, BreakerOpen: true, OverBudget: true,
		NotConfirmed: false, BehindEarlier: false, AuthRequired: false, ConnectFailed: false} {
		if got := Classify(Pause(r, time.Second, "")).Limited(); got != want {
			t.Errorf("%s: %t", r, got)
		}
	}
}

// TestAside: that an authorization server gives no answer counts neither against the agent's endpoint nor for its having moved.
func TestAside(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 429, 500} {
		v := Classify(fmt.Errorf("renew: %w", &oauth.UnavailableError{Status: status, RetryAfter: time.Minute, Err: errors.New("no")}))
		if v.Unwell || v.Moved || v.Unknown || v.AgentFault || v.RetryAfter != time.Minute {
			t.Errorf("%d: %+v", status, v)
		}
	}
}
