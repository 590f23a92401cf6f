package records_test

import (
	"fmt"
	"testing"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// TestSealedHints: the headers of hints are listed and reencrypted like those of deliveries, for the agent of their own
// job.
func TestSealedHints(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
	own, second := ledger.Intake{Job: feedback(42, 1)}, ledger.Intake{Job: feedback(42, 1)}
	own.Job.TransactionHash, second.Job.TransactionHash = common.Hash{1}, common.Hash{2}
	own.SealedHeaders, second.SealedHeaders = []byte("own"), []byte("second")
	own.Source = ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}
	second.Source = own.Source
	second.Job.IdentityRegistry = common.HexToAddress("0xaa")
	second.Job.Action.ResolveEndpoint, second.Job.Action.Endpoint = false, &job.Endpoint{Transport: "http", URL: "https://b.example/mcp"}
	accept(t, s, own, second)
	read := func() (found map[string]records.Sealed) {
		t.Helper()
		page, _, done, err := s.SealedAfter(t.Context(), 0)
		if err != nil || !done {
			t.Fatal(err, done)
		}
		found = map[string]records.Sealed{}
		for _, p := range page {
			found[string(p.Ciphertext)] = p
		}
		return found
	}
	got := read()
	if p := got["second"]; len(got) != 2 || p.URL != "https://b.example/mcp" || p.Registry != "0x00000000000000000000000000000000000000aa" || p.AgentID != "42" {
		t.Fatalf("%+v", got)
	}
	for _, p := range got {
		heraldtest.Equal(t, "resealed", fmt.Sprint(s.Reseal(t.Context(), p, append([]byte("new "), p.Ciphertext...))), "true <nil>")
	}
	if got := read(); len(got) != 2 || got["new second"].URL != "https://b.example/mcp" {
		t.Errorf("%+v", got)
	}
}

// TestSealedPages: the pages have all sealed headers of thousands of deliveries, each once.
func TestSealedPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, secret_headers)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 7, 'eip155:8453:0xbb/1/0xc1', n, '{}',
		       CASE WHEN n IN (1, 5000, 5001, 10000) THEN convert_to(n::text, 'UTF8') END FROM generate_series(1, 10000) n`)
	var found []string
	pages := 0
	for after, done := int64(0), false; !done; pages++ {
		var page []records.Sealed
		var err error
		page, after, done, err = s.SealedAfter(t.Context(), after)
		heraldtest.Must(t, err)
		for _, p := range page {
			found = append(found, string(p.Ciphertext))
		}
	}
	heraldtest.Equal(t, "found", fmt.Sprint(found, pages), "[1 5000 5001 10000] 3")
}
