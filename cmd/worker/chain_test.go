package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/doctor"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestChains checks that each followed chain is listed with its lag, as its node reports it, and that the doctor warns
// of a chain that is behind or was never read.
func TestChains(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	d, id := net.Deployment(), net.ChainID()
	database := heraldtest.Postgres(t, postgres.Migrate)
	env := []string{"DATABASE_URL=" + database, "REDIS_URL=" + heraldtest.Redis(t), "HERALD_KEYSET=" + heraldtest.Keyset(t)}
	env = append(env, fmt.Sprintf("RPC_URL_%d=%s,http://127.0.0.1:1", id, net.URL()), fmt.Sprintf("IDENTITY_REGISTRY_%d=%s", id, d.Identity),
		fmt.Sprintf("REPUTATION_REGISTRY_%d=%s", id, d.Reputation), "IPFS_GATEWAYS="+answeringGateway(t))
	chainName := fmt.Sprintf("chain %d", id)

	if _, out, errs := worker(t, env, "chain", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("before anything is read: %s%s", out, errs)
	}
	checkWorker(t, env, exitMisuse, "was never read", "chain", "show", fmt.Sprint(id))
	watching := append(slices.Clone(env), fmt.Sprintf("HERALD_WATCH=%d", id))
	diagnose(t, 0, watching...).says(chainName, doctor.MarkWarn, "it has not been read yet")

	st := storetest.Open(t, database, 2)
	head, err := net.Client().BlockNumber(t.Context())
	heraldtest.Must(t, err)
	end := head - 1
	registries := erc8004.Deployment{Identity: d.Identity, Reputation: d.Reputation}.List()
	backfill := cursor.Key{ChainID: id, Contracts: strings.Join(registries, ","), Backfill: fmt.Sprintf("0-%d", head)}
	for key, to := range map[cursor.Key]*uint64{{ChainID: id, Contracts: registries[0]}: nil,
		{ChainID: id, Contracts: registries[1]}: nil, {ChainID: id, Contracts: "0xaa"}: nil, backfill: &head} {
		c, err := st.OpenCursor(t.Context(), key, 0, to)
		if err == nil {
			_, err = st.AdvanceCursors(t.Context(), []*cursor.Cursor{&c}, store.Advance{From: 0, To: end, Head: head, Finalized: 1})
		}
		heraldtest.Must(t, err)
	}
	diagnose(t, 0, env...).says(chainName, doctor.MarkOK, "1 behind its head")
	// A cursor of another contract that still advances belongs to a second watch.
	_, out, errs := worker(t, env, "chain", "show", fmt.Sprint(id), "--json")
	if slices.ContainsFunc(decode[operator.ChainState](t, out).Cursors, func(f operator.CursorState) bool {
		return f.Former || f.LagBlocks == nil
	}) {
		t.Errorf("a second watch: %s%s", out, errs)
	}
	heraldtest.Exec(t, database, `UPDATE herald.chain_cursors SET updated_at = updated_at - interval '2 minutes' WHERE contracts = '0xaa'`)
	for range 90 { // the chain's clock advances by at least one second per block
		_, err := net.Commit()
		heraldtest.Must(t, err)
	}
	_, out, errs = worker(t, env, "chain", "show", fmt.Sprint(id), "--json")
	shown := decode[operator.ChainState](t, out)
	if len(shown.Nodes) != 2 || shown.Nodes[0].Problem != "" || shown.Nodes[1].Problem == "" || len(shown.Cursors) != 4 {
		t.Fatalf("%s%s", out, errs)
	}
	isFormer := func(f operator.CursorState) bool { return f.Former }
	former := slices.IndexFunc(shown.Cursors, isFormer)
	if former < 0 || !slices.Equal(shown.Cursors[former].Contracts, []string{"0xaa"}) || shown.Cursors[former].LagBlocks != nil {
		t.Fatalf("the cursor of a former contract: %s", out)
	}
	shown.Cursors = slices.DeleteFunc(shown.Cursors, isFormer)
	follows, read := shown.Cursors[0], shown.Cursors[2]
	if follows.Backfill != "" || follows.Next != head || follows.LagBlocks == nil || *follows.LagBlocks != 91 || *follows.LagTime < 60 ||
		follows.Finalized == nil || *follows.Finalized != 1 || !slices.Equal(follows.Contracts, registries[:1]) {
		t.Errorf("%s", out)
	}
	if read.Backfill != backfill.Backfill || !slices.Equal(read.Contracts, registries) {
		t.Errorf("a backfill: %s", out)
	}
	diagnose(t, 0, env...).says(chainName, doctor.MarkWarn, "91 blocks behind its head")
	_, out, _ = worker(t, env, "chain", "list")
	heraldtest.Contains(t, "the list", out, "91 blocks, ", "backfill 0-", "1 of 2 answer", "stopped")
	_, out, _ = worker(t, env, "chain", "show", fmt.Sprint(id))
	heraldtest.Contains(t, "the chain", out, "node 2: ", strings.Join(registries, " "))
}
