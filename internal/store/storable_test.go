package store

import (
	"bytes"
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

const mebibyte = 1 << 20

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// poisons are texts that an untrusted party may send in any string field.
var poisons = map[string]string{
	"NUL":        "a\x00b",
	"bad UTF-8":  "a\xff\xc0\xafb\xed\xa0\x80",
	"1 MiB":      strings.Repeat("é", mebibyte/2),
	"controls":   "a\x01\x02\x1b[2J\x7f\r\n\t\u0085b",
	"bidi":       "\u202eevil\u2066\u2069\u200f",
	"JSON":       `{"a": "\u0000"}`,
	"SQL":        `'; DROP TABLE herald.deliveries; --`,
	"surrogates": `\ud800\udc00\ud800`,
	"big number": "1e999999",
	"format":     "%s%n$1 {{value}}",
}

// TestPoison: each of these strings passes intake and recording, and can be read again.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	agent := 0
	for name, p := range poisons {
		agent++
		t.Run(name, func(t *testing.T) {
			j := feedback(agent, 1)
			j.Tag1, j.FeedbackURI = p, p
			if len(p) < mebibyte {
				j.Tag2, j.Endpoint, j.Reason, j.Sanitized = p, p, p, []string{p}
				j.Meta, _ = json.Marshal(map[string]string{"jobId": p, "triggerId": p, "eventId": p})
			}
			task := acceptOne(t, s, j)
			if out, _ := accept(t, s, ledger.Intake{Job: j}); out[0].Verdict != ledger.Known {
				t.Errorf("again: %+v", out)
			}
			want := strings.ToValidUTF8(strings.ReplaceAll(p, "\x00", "\uFFFD"), "\uFFFD")
			c := claim(t, s, task)
			if name != "bad UTF-8" && (c.Job.Tag1 != want || c.Job.FeedbackURI != want) || !utf8.ValidString(c.Job.Tag1) {
				t.Errorf("tag1 came back as %.60q", c.Job.Tag1)
			}
			quoted, _ := json.Marshal(map[string]string{p: p})
			for _, side := range []string{p, `"` + p + `"`, string(quoted), `{"n": [1e999999]}`, nested(5000)} {
				o := waiting(-1)
				o.Reason, o.Stage, o.Error, o.ToolName, o.Endpoint = outcome.Reason(p), p, p, p, p
				o.FileVerification, o.FileSource = p, p
				o.Protocol, o.AgentError = p, p
				o.Arguments, o.Response, o.Result, o.ServerInfo = []byte(side), []byte(side), []byte(side), []byte(side)
				c = claim(t, s, *record(t, s, c, o).Task)
			}
			record(t, s, c, delivered)
			d := read(t, s, task.ID)
			if len(d.History) != 6 || d.Status != outcome.Delivered || !strings.HasPrefix(d.Endpoint, want[:3]) {
				t.Errorf("%d attempts, %s", len(d.History), d.Status)
			}
			for _, a := range d.History[:5] {
				if !json.Valid(a.Arguments) || len(a.Arguments) > storable.MaxSide+64 || len(a.Error) > storable.MaxError || len(a.Protocol) > storable.MaxName {
					t.Errorf("attempt %d: %d bytes of arguments", a.Number, len(a.Arguments))
				}
			}
			if found, err := s.DeliveryByKey(t.Context(), d.Key); err != nil || found.ID != task.ID {
				t.Error(found, err)
			}
			rows := value[int](t, s, `SELECT count(concat(job_id, trigger_id, event_id, error_message, response_data::text))::int
				FROM herald.action_results WHERE id LIKE $1 || '%'`, task.ID.String())
			heraldtest.Equal(t, "rows in the view", rows, 6)
		})
	}
}

// TestUnstorableJob: a job that jsonb cannot store does not prevent the acceptance of the other jobs.
func TestUnstorableJob(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	deep, number, chain := feedback(1, 1), feedback(2, 1), feedback(3, 1)
	deep.Meta = []byte(nested(65))
	number.Action.PayloadTemplate = []byte(`{"a": 1e999999}`)
	chain.ChainID = 1 << 63
	wide := feedback(4, 1)
	wide.AgentID = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	out, tasks := accept(t, s, ledger.Intake{Job: deep}, ledger.Intake{Job: number}, ledger.Intake{Job: chain}, ledger.Intake{Job: wide})
	for i := range 3 {
		if d := read(t, s, out[i].ID); d.Status != outcome.Rejected || d.Reason != "invalid_job" || d.Error == "" {
			t.Errorf("%+v", d)
		}
	}
	if len(tasks) != 1 || claim(t, s, tasks[0]).Job.AgentID.Cmp(wide.AgentID) != 0 {
		t.Errorf("%+v", tasks)
	}
}

// FuzzStorable compares the result of Storable with Postgres' own jsonb, if a Postgres is available.
func FuzzStorable(f *testing.F) {
	for _, p := range poisons {
		f.Add([]byte(p[:min(len(p), 2000)]), 1024)
		q, _ := json.Marshal(p[:min(len(p), 200)])
		f.Add([]byte(`{"a": [`+string(q)+`, 1e300, "\u0000\ud83d\ude00"]}`), 4096)
	}
	for _, s := range []string{`[-0.0e-0, 1E5]`, `"\u00`, nested(65), strings.Repeat("9", 1001), "1e-301", "\"\xed\xa0\x80\"", "-", "01", "1.e5", `{"a":1,"a":2}`} {
		f.Add([]byte(s), 100)
	}
	var conn *pgx.Conn // each worker of `go test -fuzz` is a process of its own that runs one input at a time
	if url := maybePostgres(f); url != "" {
		var err error
		conn, err = pgx.Connect(context.Background(), url)
		heraldtest.Must(f, err)
		f.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	f.Fuzz(func(t *testing.T, raw []byte, limit int) {
		limit = 64 + (limit&0x7fffffff)%storable.MaxSide
		got := storable.JSON(raw, limit)
		if len(raw) == 0 {
			return
		}
		if len(got) > limit || !json.Valid(got) || !utf8.Valid(got) || bytes.IndexByte(got, 0) >= 0 {
			t.Fatalf("%d bytes of at most %d: %q", len(got), limit, got)
		}
		if again := storable.JSON(got, limit); !bytes.Equal(again, got) {
			t.Errorf("not stable: %q, then %q", got, again)
		}
		if conn == nil {
			return
		}
		var back []byte
		if err := conn.QueryRow(t.Context(), `SELECT $1::jsonb`, got).Scan(&back); err != nil {
			t.Fatalf("Postgres refuses %q: %v", got, err)
		}
	})
}

// unskipped is a test that continues where it would be skipped.
type unskipped struct{ testing.TB }

func (unskipped) Skipf(string, ...any) { panic(unskipped{}) }

// maybePostgres returns the URL of an empty database, or "" on a machine without Postgres.
func maybePostgres(tb testing.TB) (url string) {
	defer func() {
		if v := recover(); v != nil && v != any(unskipped{}) {
			panic(v)
		}
	}()
	return heraldtest.EmptyPostgres(unskipped{tb})
}
