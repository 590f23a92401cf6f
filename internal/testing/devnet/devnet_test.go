package devnet_test

import (
	"context"
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"

	"github.com/agentherald/herald/internal/chain/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/devnet/registry"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m, devnettest.Leftovers()...) }

func start(t *testing.T, cfg devnet.Config) (*devnet.Net, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return devnettest.Start(t, cfg), ctx
}

// event returns the first event of a kind in a receipt.
func event(t *testing.T, receipt *types.Receipt, kind erc8004.Kind) erc8004.Event {
	t.Helper()
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == kind {
			return e
		}
	}
	t.Fatalf("no %s in the receipt", kind)
	return erc8004.Event{}
}

func kinds(t *testing.T, receipt *types.Receipt) (out []erc8004.Kind) {
	t.Helper()
	for _, l := range receipt.Logs {
		e, err := erc8004.Decode(*l)
		heraldtest.Must(t, err)
		out = append(out, e.Kind)
	}
	return out
}

func TestRegistries(t *testing.T) {
	n, ctx := start(t, devnet.Config{})
	owner, client, validator := n.Account(0), n.Account(1), n.Account(2)

	id, receipt, err := n.Register(ctx, owner, "data:,a")
	heraldtest.Must(t, err)
	if id.Sign() != 0 {
		t.Errorf("the first agent is %s", id)
	}
	if got, want := kinds(t, receipt), []erc8004.Kind{erc8004.Transfer, erc8004.MetadataUpdate, erc8004.Registered, erc8004.MetadataSet}; !slices.Equal(got, want) {
		t.Errorf("register emitted %v, want %v", got, want)
	}
	second, receipt, err := n.Register(ctx, owner, "")
	if err != nil || second.Int64() != 1 {
		t.Fatalf("second agent %v, %v", second, err)
	}
	if got, want := kinds(t, receipt), []erc8004.Kind{erc8004.Transfer, erc8004.Registered, erc8004.MetadataSet}; !slices.Equal(got, want) {
		t.Errorf("register() emitted %v, want %v", got, want)
	}
	if receipt, err = n.SetURI(ctx, owner, id, "data:,b"); err != nil || !slices.Equal(kinds(t, receipt), []erc8004.Kind{erc8004.MetadataUpdate, erc8004.URIUpdated}) {
		t.Errorf("setAgentURI: %v", err)
	}
	if _, err = n.SetMetadata(ctx, owner, id, "k", []byte("v")); err != nil {
		t.Error(err)
	}
	if _, err := n.SetURI(ctx, client, id, ""); err == nil {
		t.Error("a stranger changed the URI")
	}

	value, _ := new(big.Int).SetString("-100000000000000000000000000000000000000", 10)
	f := devnet.Feedback{AgentID: id, Value: value, ValueDecimals: 18, Tag1: "t1", Tag2: "\x00\xff", Endpoint: "e", URI: "u", Hash: common.Hash{1}}
	for want := uint64(1); want <= 2; want++ {
		index, receipt, err := n.GiveFeedback(ctx, client, f)
		if err != nil || index != want {
			t.Fatalf("index %d, want %d: %v", index, want, err)
		}
		if e := event(t, receipt, erc8004.NewFeedback); e.Value.Cmp(value) != 0 || e.Tag2 != f.Tag2 || e.FeedbackURI != "u" || e.FeedbackHash != f.Hash || e.Client != client.Address {
			t.Errorf("%+v", e)
		}
	}
	for name, bad := range map[string]func() error{
		"own agent": func() error { _, _, err := n.GiveFeedback(ctx, owner, f); return err },
		"value": func() error {
			g := f
			g.Value = new(big.Int).Sub(value, big.NewInt(1))
			_, _, err := n.GiveFeedback(ctx, client, g)
			return err
		},
		"decimals": func() error { g := f; g.ValueDecimals = 19; _, _, err := n.GiveFeedback(ctx, client, g); return err },
		"no agent": func() error {
			g := f
			g.AgentID = big.NewInt(99)
			_, _, err := n.GiveFeedback(ctx, client, g)
			return err
		},
	} {
		err := bad()
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if data, ok := ethclient.RevertErrorData(err); !ok || erc8004.IsNonexistentToken(data) != (name == "no agent") {
			t.Errorf("%s: revert data %x, %v", name, data, err)
		}
	}
	if _, err := n.RevokeFeedback(ctx, client, id, 1); err != nil {
		t.Error(err)
	}
	if _, err := n.AppendResponse(ctx, owner, id, client.Address, 2, "r", common.Hash{2}); err != nil {
		t.Error(err)
	}
	to := n.Deployment().Reputation
	call := func(data []byte) []byte {
		t.Helper()
		ret, err := n.Client().CallContract(ctx, ethereum.CallMsg{To: &to, Data: data}, nil)
		heraldtest.Must(t, err)
		return ret
	}
	reputation := registry.NewReputationRegistry()
	for index, revoked := range map[uint64]bool{1: true, 2: false} {
		got, err := erc8004.UnpackReadFeedback(call(reputation.PackReadFeedback(id, client.Address, index)))
		if err != nil || got.Revoked != revoked || got.Value.Cmp(value) != 0 || got.ValueDecimals != 18 || got.Tag1 != "t1" || got.Tag2 != f.Tag2 {
			t.Errorf("feedback %d: %+v, %v", index, got, err)
		}
	}
	if got, err := reputation.UnpackGetResponseCount(call(reputation.PackGetResponseCount(id, client.Address, 2, []common.Address{owner.Address, client.Address}))); err != nil || got != 1 {
		t.Errorf("%d responses, %v", got, err)
	}
	if got, err := reputation.UnpackGetClients(call(reputation.PackGetClients(id))); err != nil || len(got) != 1 || got[0] != client.Address {
		t.Errorf("clients %v, %v", got, err)
	}

	request := common.Hash{7}
	if _, err := n.RequestValidation(ctx, owner, validator.Address, id, "q", request); err != nil {
		t.Error(err)
	}
	if _, err := n.RespondValidation(ctx, owner, request, 1, "", common.Hash{}, ""); err == nil {
		t.Error("another than the validator responded")
	}
	if receipt, err := n.RespondValidation(ctx, validator, request, 100, "r", common.Hash{3}, "t"); err != nil {
		t.Error(err)
	} else if e := event(t, receipt, erc8004.ValidationResponse); e.Response != 100 || e.AgentID.Cmp(id) != 0 || e.Validator != validator.Address {
		t.Errorf("%+v", e)
	}

	receipt, err = n.Transfer(ctx, owner, client.Address, id)
	heraldtest.Must(t, err)
	if got, want := kinds(t, receipt), []erc8004.Kind{erc8004.MetadataSet, erc8004.Transfer}; !slices.Equal(got, want) {
		t.Errorf("transfer emitted %v, want %v", got, want)
	}
}

func TestReorg(t *testing.T) {
	n, ctx := start(t, devnet.Config{ChainID: 11155111})
	id, _, err := n.Register(ctx, n.Account(0), "data:,a")
	heraldtest.Must(t, err)
	give := func() *types.Receipt {
		t.Helper()
		_, receipt, err := n.GiveFeedback(ctx, n.Account(1), devnet.Feedback{AgentID: id})
		heraldtest.Must(t, err)
		return receipt
	}
	first := give()
	heraldtest.Must(t, n.Reorg(ctx, 1, true))
	again, err := n.Receipt(ctx, first.TxHash)
	if err != nil || again.BlockHash == first.BlockHash {
		t.Errorf("the transaction was not mined in another block: %v", err)
	}
	gone := give()
	heraldtest.Must(t, n.Reorg(ctx, 1, false))
	if _, err := n.Client().TransactionReceipt(ctx, gone.TxHash); !errors.Is(err, ethereum.NotFound) {
		t.Errorf("the transaction is still there: %v", err)
	}
	// After the reorg, nonces and indexes are those of the new branch.
	if index, _, err := n.GiveFeedback(ctx, n.Account(1), devnet.Feedback{AgentID: id}); err != nil || index != 2 {
		t.Errorf("index %d, %v", index, err)
	}
}

func TestManyInOneBlockOverHTTPAndWebSocket(t *testing.T) {
	n, ctx := start(t, devnet.Config{ChainID: 8453})
	id, _, err := n.Register(ctx, n.Account(0), "")
	heraldtest.Must(t, err)
	ws, err := ethclient.DialContext(ctx, n.WebSocketURL())
	heraldtest.Must(t, err)
	defer ws.Close()
	logs := make(chan types.Log, 10)
	sub, err := ws.SubscribeFilterLogs(ctx, ethereum.FilterQuery{Addresses: []common.Address{n.Deployment().Reputation}}, logs)
	heraldtest.Must(t, err)
	defer sub.Unsubscribe()
	var txs []common.Hash
	for range 3 {
		tx, err := n.Submit(ctx, n.Account(1), n.Deployment().Reputation, devnet.Feedback{AgentID: id}.Calldata())
		heraldtest.Must(t, err)
		txs = append(txs, tx)
	}
	if _, err := n.Commit(); err != nil {
		t.Fatal(err)
	}
	http, err := ethclient.DialContext(ctx, n.URL())
	heraldtest.Must(t, err)
	defer http.Close()
	if chain, err := http.ChainID(ctx); err != nil || chain.Uint64() != 8453 {
		t.Errorf("chain %v, %v", chain, err)
	}
	for i, tx := range txs {
		receipt, err := http.TransactionReceipt(ctx, tx)
		if err != nil || len(receipt.Logs) != 1 || receipt.Logs[0].Index != uint(i) {
			t.Errorf("receipt %d: %v", i, err)
		}
		select {
		case l := <-logs:
			if l.TxHash != tx {
				t.Errorf("log %d is of %s", i, l.TxHash)
			}
		case <-ctx.Done():
			t.Fatal("no log over WebSocket")
		}
	}
}

func TestTickerMinesAndStops(t *testing.T) {
	n, ctx := start(t, devnet.Config{Interval: 5 * time.Millisecond})
	heads := make(chan *types.Header, 4)
	sub, err := n.Client().(ethereum.ChainReader).SubscribeNewHead(ctx, heads)
	heraldtest.Must(t, err)
	defer sub.Unsubscribe()
	for range 2 {
		select {
		case <-heads:
		case <-ctx.Done():
			t.Fatal("no block was mined")
		}
	}
	if _, _, err := n.Register(ctx, n.Account(0), ""); err != nil {
		t.Error(err)
	}
}

func TestSameAddressesInEveryRun(t *testing.T) {
	a, _ := start(t, devnet.Config{})
	b, _ := start(t, devnet.Config{ChainID: 1, Accounts: 10})
	if a.Deployment() != b.Deployment() || a.Account(3).Address != b.Account(3).Address {
		t.Errorf("%+v, %+v", a.Deployment(), b.Deployment())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Commit(); err == nil {
		t.Error("a closed chain mined a block")
	}
}

func TestStartRefuses(t *testing.T) {
	for _, cfg := range []devnet.Config{{Accounts: -1}, {Interval: -1}} {
		if n, err := devnet.Start(t.Context(), cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
			_ = n.Close()
		}
	}
}
