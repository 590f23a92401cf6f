package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m, devnettest.Leftovers()...) }

var limits = job.Limits{MaxTimeout: 30 * time.Second}

// world is a development chain with one agent, and a client of its node.
type world struct {
	t      *testing.T
	ctx    context.Context
	net    *devnet.Net
	client *Client
	agent  *big.Int
	owner  devnet.Account
	rater  devnet.Account
}

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

func newWorld(t *testing.T, confirmations uint64) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	net := devnettest.Start(t, devnet.Config{})
	w := &world{t: t, ctx: ctx, net: net, owner: net.Account(0), rater: net.Account(1)}
	w.client = newClient(t, Config{ChainID: net.ChainID(), URLs: []secret.Secret{secret.New(net.URL())}, Confirmations: erc8004.Depth{Blocks: confirmations},
		Registries: net.Deployment().Registries(), LogRange: erc8004.Depth{Blocks: 1000}})
	var err error
	w.agent, _, err = net.Register(ctx, w.owner, "data:application/json,{}")
	heraldtest.Must(t, err)
	return w
}

func (w *world) mine(blocks int) {
	w.t.Helper()
	for range blocks {
		if _, err := w.net.Commit(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// job returns the job of the event of that kind in a receipt.
func (w *world) job(kind erc8004.Kind, r *types.Receipt, err error) job.Job {
	w.t.Helper()
	heraldtest.Must(w.t, err)
	for _, l := range r.Logs {
		e, err := erc8004.Decode(*l)
		if err != nil || e.Kind != kind {
			continue
		}
		j, err := Job(e, w.net.ChainID(), w.net.Deployment(), l.BlockTimestamp, limits)
		heraldtest.Must(w.t, err)
		return j
	}
	w.t.Fatalf("no %s in the receipt", kind)
	return job.Job{}
}

func (w *world) feedback() job.Job {
	w.t.Helper()
	_, r, err := w.net.GiveFeedback(w.ctx, w.rater, devnet.Feedback{AgentID: w.agent, Value: big.NewInt(-9977), ValueDecimals: 2, Tag1: "up\x00time", Tag2: "\xff\xfe", Endpoint: "https://a", URI: "ipfs://x", Hash: common.Hash{1}})
	return w.job(erc8004.NewFeedback, r, err)
}

// minedAt returns the timestamp of a job's block.
func (w *world) minedAt(j job.Job) int64 {
	w.t.Helper()
	b, err := w.client.readBlock(w.ctx, formatNumber(j.BlockNumber))
	if err != nil || b == nil {
		w.t.Fatal(err)
	}
	return int64(b.Time)
}

// check returns the standing of a job without its event.
func (w *world) check(j job.Job, v Verify) Standing {
	w.t.Helper()
	s, err := w.client.Check(w.ctx, j, v)
	heraldtest.Must(w.t, err)
	s.Event = nil
	return s
}

// readEvent returns the event of a job.
func (w *world) readEvent(j job.Job) job.Job {
	w.t.Helper()
	s, err := w.client.Check(w.ctx, j, VerifyReceipt)
	if err != nil || s.Event == nil {
		w.t.Fatalf("%+v, %v", s, err)
	}
	return *s.Event
}

func TestTokenURI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	identity := w.net.Deployment().Identity
	for _, want := range []string{"data:application/json,{}", "", "\x00\xff" + strings.Repeat("u", 5000)} {
		if want != "data:application/json,{}" {
			if _, err := w.net.SetURI(w.ctx, w.owner, w.agent, want); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := w.client.TokenURI(w.ctx, identity, w.agent); err != nil || got != want {
			t.Errorf("%.40q, %v", got, err)
		}
	}
	var gone *NoSuchAgentError
	for _, id := range []*big.Int{big.NewInt(99), new(big.Int).Lsh(big.NewInt(1), 255), new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(-1), nil} {
		if _, err := w.client.TokenURI(w.ctx, identity, id); !errors.As(err, &gone) {
			t.Errorf("agent %v: %v", id, err)
		}
	}
	// The reputation registry has no tokenURI, so it reverts without the error that the identity registry returns.
	if _, err := w.client.TokenURI(w.ctx, w.net.Deployment().Reputation, w.agent); !errors.As(err, &gone) {
		t.Errorf("another contract: %v", err)
	}
	var none *NoContractError
	var away *UnavailableError
	if _, err := w.client.TokenURI(w.ctx, common.Address{9}, w.agent); !errors.As(err, &none) || !errors.As(err, &away) {
		t.Errorf("no contract: %v", err)
	}
}

func TestCheckFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.feedback()
	j := w.feedback()
	found := Standing{Found: true, Confirmed: true, BlockNumber: j.BlockNumber, BlockHash: j.BlockHash, Timestamp: w.minedAt(j)}
	heraldtest.Equal(t, "genuine", w.check(j, VerifyReceipt), found)
	if got := w.check(j, VerifyOff); !got.Found || !got.Confirmed {
		t.Errorf("off: %+v", got)
	}
	bare := j
	bare.TransactionHash, bare.LogIndex = common.Hash{}, nil
	if got := w.check(bare, VerifyReceipt); !got.Found || !got.Confirmed {
		t.Errorf("without transaction: %+v", got)
	}
	noPlace := j
	noPlace.LogIndex, noPlace.BlockHash, noPlace.BlockNumber = nil, common.Hash{}, 0
	heraldtest.Equal(t, "without log index and block", w.check(noPlace, VerifyReceipt), found)

	// The log is the content: other fields of the job have no effect.
	for field, forge := range map[string]func(*job.Job){
		"value":            func(j *job.Job) { j.Value = big.NewInt(9977) },
		"valueDecimals":    func(j *job.Job) { j.ValueDecimals = 1 },
		"tag1":             func(j *job.Job) { j.Tag1 = "uptime" },
		"tag2":             func(j *job.Job) { j.Tag2 += "x" },
		"endpoint":         func(j *job.Job) { j.Endpoint += "x" },
		"feedbackURI":      func(j *job.Job) { j.FeedbackURI += "x" },
		"feedbackHash":     func(j *job.Job) { j.FeedbackHash[0]++ },
		"identityRegistry": func(j *job.Job) { j.IdentityRegistry = common.Address{5} },
		"logIndex":         func(j *job.Job) { i := uint(17); j.LogIndex = &i },
		"blockNumber":      func(j *job.Job) { j.BlockNumber-- },
	} {
		for _, from := range []job.Job{j, bare} {
			forged := from
			forge(&forged)
			read := w.readEvent(forged)
			if !read.SameEvent(j) || read.IdentityRegistry != j.IdentityRegistry || *read.LogIndex != *j.LogIndex || read.BlockHash != j.BlockHash {
				t.Errorf("%s forged: %+v", field, read)
			}
			if got := forged.Differences(read); len(got) != 1 || got[0] != field {
				t.Errorf("%s forged: differences %v", field, got)
			}
		}
	}

	// The key names the event, and the transaction is where it has to be.
	for field, forge := range map[string]func(*job.Job){
		"agentId":            func(j *job.Job) { j.AgentID = big.NewInt(7) },
		"clientAddress":      func(j *job.Job) { j.ClientAddress = w.owner.Address },
		"feedbackIndex":      func(j *job.Job) { j.FeedbackIndex = 3 },
		"reputationRegistry": func(j *job.Job) { j.ReputationRegistry = w.net.Deployment().Validation },
		"transactionHash":    func(j *job.Job) { j.TransactionHash = common.Hash{5} },
		"type":               func(j *job.Job) { j.Kind = job.KindFeedbackRevoked },
	} {
		forged := j
		forge(&forged)
		want := Standing{Disagrees: field, Unlisted: field == "reputationRegistry"}
		if field == "type" { // the transaction has no log of that kind
			want = newContradiction("transactionHash")
		}
		if got := w.check(forged, VerifyReceipt); got != want {
			t.Errorf("%s forged: %+v", field, got)
		}
		if field == "transactionHash" {
			continue
		}
		forged = bare
		forge(&forged)
		if field != "reputationRegistry" {
			want = Standing{Disagrees: "transactionHash", SearchedTo: j.BlockNumber}
		}
		if got := w.check(forged, VerifyReceipt); got != want {
			t.Errorf("%s forged, without transaction: %+v, want %+v", field, got, want)
		}
	}

	revoked := w.job2(w.net.RevokeFeedback(w.ctx, w.rater, w.agent, j.FeedbackIndex))(erc8004.FeedbackRevoked)
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyReceipt); !got.Found || !got.Revoked {
			t.Errorf("revoked: %+v", got)
		}
	}
	if got := w.check(revoked, VerifyReceipt); !got.Found || !got.Confirmed || got.Revoked {
		t.Errorf("the revocation: %+v", got)
	}
}

// job2 accepts the results of a devnet helper, and returns a function that builds the job of the event of a kind in
// them.
func (w *world) job2(r *types.Receipt, err error) func(erc8004.Kind) job.Job {
	return func(kind erc8004.Kind) job.Job {
		w.t.Helper()
		return w.job(kind, r, err)
	}
}

func TestCheckOtherKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	given := w.feedback()
	response := w.job2(w.net.AppendResponse(w.ctx, w.owner, w.agent, w.rater.Address, given.FeedbackIndex, "r\x00", common.Hash{2}))(erc8004.ResponseAppended)
	request := common.Hash{3}
	if _, err := w.net.RequestValidation(w.ctx, w.owner, w.rater.Address, w.agent, "q", request); err != nil {
		t.Fatal(err)
	}
	validation := w.job2(w.net.RespondValidation(w.ctx, w.rater, request, 88, "r", common.Hash{4}, "t"))(erc8004.ValidationResponse)
	for _, j := range []job.Job{response, validation} {
		if got := w.check(j, VerifyReceipt); !got.Found || !got.Confirmed {
			t.Errorf("%s: %+v", j.Kind, got)
		}
		bare := j
		bare.TransactionHash = common.Hash{}
		if got := w.check(bare, VerifyReceipt); got != newContradiction("transactionHash") { // only that log counts
			t.Errorf("%s, without transaction: %+v", j.Kind, got)
		}
	}
	for field, j := range map[string]job.Job{
		// One event must not pass under several keys. The first job names a block that no node has.
		"logIndex":    with(response, func(j *job.Job) { i := uint(17); j.LogIndex, j.BlockHash = &i, common.Hash{5} }),
		"responder":   with(response, func(j *job.Job) { j.Responder = w.rater.Address }),
		"requestHash": with(validation, func(j *job.Job) { j.RequestHash = common.Hash{9} }),
	} {
		if got := w.check(j, VerifyReceipt); got != newContradiction(field) {
			t.Errorf("%s forged: %+v", field, got)
		}
	}
	elsewhere := with(validation, func(j *job.Job) { i := uint(17); j.LogIndex, j.BlockHash = &i, common.Hash{5} })
	heraldtest.Equal(t, "a validation elsewhere", w.check(elsewhere, VerifyReceipt), newContradiction("logIndex"))
	if got := w.readEvent(with(response, func(j *job.Job) { j.ResponseURI, j.ResponseHash = "", common.Hash{} })); !got.SameEvent(response) {
		t.Errorf("the response is %+v", got)
	}
	forged := with(validation, func(j *job.Job) {
		j.AgentID, j.ValidatorAddress, j.Response, j.Tag = big.NewInt(7), common.Address{7}, 100, "x"
	})
	if got := w.readEvent(forged); !got.SameEvent(validation) {
		t.Errorf("the validation is %+v", got)
	}
	updated := job.Job{Kind: job.KindAgentUpdated, ChainID: w.net.ChainID()}
	if got := w.check(updated, VerifyReceipt); !got.Found || !got.Confirmed {
		t.Errorf("%s: %+v", updated.Kind, got)
	}
}

func with(j job.Job, change func(*job.Job)) job.Job {
	change(&j)
	return j
}

func TestCheckConfirmations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	j := w.feedback()
	bare := with(j, func(j *job.Job) { j.TransactionHash = common.Hash{} })
	for missing := uint64(3); missing > 0; missing-- {
		if got := w.check(j, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != missing {
			t.Errorf("%d blocks missing: %+v", missing, got)
		}
		if got := w.check(bare, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
			t.Errorf("%d blocks missing, without transaction: %+v", missing, got)
		}
		w.mine(1)
	}
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyReceipt); !got.Confirmed || got.ConfirmedIn != 0 {
			t.Errorf("three blocks later: %+v", got)
		}
	}

	tx, err := w.net.Submit(w.ctx, w.rater, w.net.Deployment().Reputation, devnet.Feedback{AgentID: w.agent}.Calldata())
	heraldtest.Must(t, err)
	waiting := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = tx, 0 })
	if got := w.check(waiting, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 4 {
		t.Errorf("not mined yet: %+v", got)
	}
	rival := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = common.Hash{9}, j.BlockNumber+1 })
	if got := w.check(rival, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 1 {
		t.Errorf("not in a block that a reorg may still replace: %+v", got)
	}
	w.mine(1)
	if got := w.check(rival, VerifyReceipt); got != newContradiction("transactionHash") {
		t.Errorf("not in a block that is deep enough: %+v", got)
	}
	ahead := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = common.Hash{9}, j.BlockNumber+101 })
	if got := w.check(ahead, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 100 {
		t.Errorf("a node that lags: %+v", got)
	}
}

func TestCheckFinalized(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.feedback()
	bare := with(j, func(j *job.Job) { j.TransactionHash = common.Hash{} })
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyFinalized); !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
			t.Errorf("nothing is final yet: %+v", got)
		}
	}
	w.mine(64) // the development chain finalizes every 32nd block
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyFinalized); !got.Found || !got.Confirmed {
			t.Errorf("final: %+v", got)
		}
	}
}

func TestCheckAfterReorg(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.feedback()
	heraldtest.Must(t, w.net.Reorg(w.ctx, 1, true))
	got := w.check(j, VerifyReceipt)
	if !got.Found || !got.Confirmed || got.BlockHash == j.BlockHash || got.BlockHash == (common.Hash{}) {
		t.Errorf("mined again: %+v", got)
	}
	j = w.feedback()
	heraldtest.Must(t, w.net.Reorg(w.ctx, 1, false))
	if got := w.check(j, VerifyReceipt); got != newContradiction("transactionHash") {
		t.Errorf("gone: %+v", got)
	}
}

func TestWrongChain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	c := newClient(t, Config{ChainID: 8453, URLs: []secret.Secret{secret.New(w.net.URL())}})
	for range 2 {
		var wrong *WrongChainError
		if err := c.Ping(w.ctx); !errors.As(err, &wrong) || wrong.Got != w.net.ChainID() || wrong.Want != 8453 {
			t.Errorf("%v", err)
		}
	}
	if _, err := w.client.Check(w.ctx, job.Job{ChainID: 8453}, VerifyReceipt); err == nil {
		t.Error("a job of another chain was checked")
	}
	if _, err := w.client.Check(w.ctx, job.Job{ChainID: w.net.ChainID()}, "maybe"); err == nil {
		t.Error("an unknown way to verify was taken")
	}
}

func TestNodeGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.feedback()
	w.check(j, VerifyReceipt)
	heraldtest.Must(t, w.net.Close())
	var away *UnavailableError
	if _, err := w.client.Check(w.ctx, j, VerifyReceipt); !errors.As(err, &away) {
		t.Errorf("check: %v", err)
	}
	if _, err := w.client.TokenURI(w.ctx, j.IdentityRegistry, w.agent); !errors.As(err, &away) {
		t.Errorf("tokenURI: %v", err)
	}
	w.client.Close()
	if err := w.client.Ping(w.ctx); !errors.As(err, &away) {
		t.Errorf("closed: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{URLs: []secret.Secret{secret.New("http://a")}}, {ChainID: 1}, {ChainID: 1, URLs: []secret.Secret{secret.New("a")}}, {ChainID: 1, URLs: []secret.Secret{secret.New("ftp://u:pw@a")}},
		{ChainID: 1, URLs: []secret.Secret{secret.New("http://a")}, Timeout: -1}, {ChainID: 1, URLs: []secret.Secret{secret.New("http://u:pw@\x7f")}},
	} {
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "pw") {
			t.Errorf("%v: %v", cfg, err)
		}
	}
}

// TestErrorsHideTheURL: URLs of node providers contain keys, in the path or in the query. No error may show them.
func TestErrorsHideTheURL(t *testing.T) {
	t.Parallel()
	answers := map[string]http.HandlerFunc{
		"status": func(rw http.ResponseWriter, r *http.Request) {
			http.Error(rw, "key of "+r.URL.Path+" is over", http.StatusTooManyRequests)
		},
		"redirect": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "https://other.example"+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"html": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "<html>") },
		"hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client disconnects
			<-r.Context().Done()
		},
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"error": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"`+strings.Repeat("m", 5000)+`"}}`)
		},
		"error with the address": func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":%q}}`, strings.Repeat("m", 260)+" "+r.URL.String()+" "+strings.ReplaceAll(r.URL.String(), "/", `\/`))
		},
		"error with the password": func(rw http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"no: %s, %s:%s"}}`, r.Header["Authorization"], user, password)
		},
		"id big": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"result":"0x1ffffffffffffffffff"}`)
		},
	}
	urls := map[string]string{"no listener": "http://user:KEY-of-ours@127.0.0.1:1/v3/KEY-of-ours?k=KEY-of-ours",
		"no listener, ws": "ws://127.0.0.1:1/v3/KEY-of-ours"}
	for name, h := range answers {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		urls[name] = strings.Replace(server.URL, "://", "://us:KEY9@", 1) + "/v3/KEY-of-ours?k=KEY-of-ours"
	}
	for name, url := range urls {
		c := newClient(t, Config{ChainID: 1, URLs: []secret.Secret{secret.New(url)}, Timeout: 300 * time.Millisecond})
		err := c.Ping(t.Context())
		var away *UnavailableError
		var wrong *WrongChainError
		if !errors.As(err, &away) && !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "KEY") || strings.Contains(err.Error(), "dXM6S0VZOQ") || len(err.Error()) > 600 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
