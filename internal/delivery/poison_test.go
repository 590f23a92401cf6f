package delivery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// venom contains strings that an untrusted party may send. All of them fit in a transaction.
var venom = map[string]string{
	"NUL":           "a\x00b",
	"NUL alone":     "\x00",
	"bad UTF-8":     "a\xff\xfe\xc0\xafb",
	"surrogates":    "\xed\xa0\x80\xed\xbf\xbf",
	"cut character": "abc\xe2\x82",
	"RTL":           "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
	"controls":      "\x1b]0;owned\x07\x1b[2J\r\n\t\x7f\u0085\u009b31m",
	"quotes":        `"\'); DROP SCHEMA herald; --{{tag1}}{{nothing}}%s%n${HOME}`,
	"escapes":       `\u0000\ud800\x00`,
	"deep":          strings.Repeat("[", 600) + strings.Repeat("]", 600),
	"number":        "1e999999999",
	"noncharacter":  "\ufffe\uffff\U0010ffff",
	"combining":     "e" + strings.Repeat("\u0301", 400),
	"BOM":           "\ufeff{}",
}

// big1M is too large for a transaction, but not for a file, a document or an answer.
var big1M = strings.Repeat("\u202eA\x01", 1<<20/5)

// documents returns complete JSON documents that an untrusted party may serve.
func documents() map[string]string {
	return map[string]string{
		"nothing": "", "null": "null", "a number": "1e400", "huge numbers": `{"a":1e999999,"b":-1e-999999,"c":` + strings.Repeat("9", 5000) + `}`,
		"deep": strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), "deeper than Go reads": strings.Repeat("[", 20000) + strings.Repeat("]", 20000),
		"NUL escape": `{"a\u0000":"b\u0000"}`, "lone surrogates": `{"\ud800":"\udfff\ud83d"}`, "raw NUL": "{\"a\":\"\x00\"}", "raw bytes": "{\"a\":\"\xff\"}",
		"twice": `{"a":1,"a":2,"A":3}`, "BOM": "\xef\xbb\xbf{}", "RTL": `{"\u202ea":"\u202e\u001b[2J"}`, "many": "[" + strings.Repeat("{},", 100000) + "{}]",
		"1 MiB": string(asJSON(map[string]string{"text": big1M})), "no JSON": "<!doctype html>\x00\xff", "cut": `{"a":`,
	}
}

// texts returns texts for the parts of an agent's answers that are strings.
func texts() map[string]string {
	out := map[string]string{"1 MiB": big1M, "document": documents()["lone surrogates"]}
	maps.Copy(out, venom)
	return out
}

// answering returns an agent that answers requests of a method with say.
func answering(t testing.TB, method string, say func(http.ResponseWriter, json.RawMessage)) *agent {
	t.Helper()
	return newAgent(t, onAny(func(m string, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		if m == method {
			say(rw, id)
		}
		return m == method
	}))
}

// TestPoison sends untrusted bytes through all steps. Nothing panics or hangs, each row ends and can be read, and the
// agent gets no characters that control a terminal or reverse text. Make soak puts each text in each place; otherwise each
// text is in a third of the places, and each place contains a third of the texts.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	var ids []uuid.UUID
	names := map[uuid.UUID]string{}
	note := func(name string, id uuid.UUID) {
		if other, known := names[id]; known {
			t.Errorf("%s and %s are one row", name, other)
		}
		ids, names[id] = append(ids, id), name
	}
	turn := 0
	isChosen := func() bool { turn++; return turn%3 == 0 || heraldtest.Soaks() } // no text has a multiple of 3 places
	submit := func(name string, make func() devnet.Feedback) {
		t.Helper()
		if isChosen() {
			j, _ := w.rateJob(make())
			note(name, w.acceptJobs(j)[0].ID)
		}
	}
	good := newAgent(t)
	goodID := w.register(at(good.URL))

	// The event's own strings, as mined.
	for _, name := range slices.Sorted(maps.Keys(venom)) {
		v := venom[name]
		submit("tags and endpoint: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: goodID, Tag1: v, Tag2: v, Endpoint: v} })
		submit("feedbackURI: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: goodID, URI: v} })
		submit("data URI: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: goodID, URI: "data:application/json," + v} })
		submit("tokenURI: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: w.registerURI(v)} })
	}
	// The producer's additions. Such a job may be refused, but it must be answered.
	for _, name := range slices.Sorted(maps.Keys(venom)) {
		v := venom[name]
		if !isChosen() {
			continue
		}
		j, _ := w.rate(devnet.Feedback{AgentID: goodID})
		j["meta"] = map[string]any{v: v}
		j["action"] = map[string]any{"payloadTemplate": map[string]any{v: "{{tag1}}" + v, "file": "{{fileContent}} and {{file_content}}"}}
		if a := w.submit(j)[0]; a.Verdict == ledger.Accepted {
			note("meta and template: "+name, a.ID)
		} else if a.Verdict != intake.Refused {
			t.Errorf("meta and template: %s: %+v", name, a)
		}
		j, _ = w.rate(devnet.Feedback{AgentID: goodID})
		j = with(j, map[string]any{"resolveEndpoint": false, "endpoint": map[string]any{"transport": "http", "url": good.URL + "/" + v, "headers": map[string]any{"X-Key": v}}})
		if a := w.submit(j)[0]; a.Verdict == ledger.Accepted {
			note("own endpoint: "+name, a.ID)
		}
	}
	// Files, registrations, and all parts of an agent's answers.
	answers := func(method, name string, say func(http.ResponseWriter, json.RawMessage)) {
		if !isChosen() {
			return
		}
		j, _ := w.rate(devnet.Feedback{AgentID: goodID})
		note(method+": "+name, w.accept(with(j, own(answering(t, method, say).URL, nil))))
	}
	docs := documents()
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		doc := docs[name]
		add := func(file []byte) string { return "ipfs://" + w.gateway.AddFile(file).String() }
		submit("file: "+name, func() devnet.Feedback {
			return devnet.Feedback{AgentID: goodID, URI: add([]byte(doc)), Hash: crypto.Keccak256Hash([]byte(doc))}
		})
		submit("registration: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: w.registerURI(add([]byte(doc)))} })
		rigged := []byte(`{"name":` + string(asJSON(doc)) + `,"x":` + doc + `,"services":[{"name":"MCP","endpoint":` + string(asJSON(good.URL)) + `,"version":` + string(asJSON(doc)) + `}]}`)
		submit("around a good registration: "+name, func() devnet.Feedback { return devnet.Feedback{AgentID: w.registerURI(add(rigged))} })
		for _, place := range [][2]string{{"initialize", doc}, {"tools/list", doc}, {"tools/list", `{"tools":[{"name":"agent.receiveFeedback","inputSchema":` + doc + `}]}`},
			{"tools/call", doc}, {"tools/call", `{"content":[{"type":"text","text":` + string(asJSON(doc)) + `}],"structuredContent":` + doc + `}`}} {
			answers(place[0], name, func(rw http.ResponseWriter, id json.RawMessage) { reply(rw, id, place[1]) })
		}
	}
	said := texts()
	for _, name := range slices.Sorted(maps.Keys(said)) {
		v := said[name]
		text := string(asJSON(v))
		for _, place := range [][2]string{
			{"initialize", fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":%s,"version":%[1]s},"instructions":%[1]s}`, text)},
			{"tools/list", fmt.Sprintf(`{"tools":[{"name":%s,"inputSchema":{}},{"name":"agent.receiveFeedback","description":%[1]s,"inputSchema":{"type":"object","properties":{%[1]s:{"default":%[1]s}}}}]}`, text)},
			{"tools/call", `{"isError":true,"content":[{"type":"text","text":` + text + `}]}`},
		} {
			answers(place[0], "text "+name, func(rw http.ResponseWriter, id json.RawMessage) { reply(rw, id, place[1]) })
		}
		answers("tools/call", "error "+name, func(rw http.ResponseWriter, id json.RawMessage) { replyError(rw, id, -32602, v) })
		answers("tools/call", "HTTP "+name, func(rw http.ResponseWriter, _ json.RawMessage) { http.Error(rw, v, http.StatusBadRequest) })
	}
	// Complete jobs in Redis: bytes that are no job become rejected rows.
	for name, doc := range documents() {
		if _, err := w.intake.FromTask(heraldtest.Within(t, 20*time.Second), "NewFeedback", []byte(doc)); err != nil {
			t.Errorf("task: %s: %v", name, err)
		}
	}
	// In the old backend's list, no element stops the elements after it, which one transaction stores.
	var elements []intake.Element
	for _, hostile := range []map[string]string{documents(), venom} {
		for _, text := range hostile {
			for _, body := range []string{text, `{"action_type":"` + text + `"}`, `{"` + text + `":{},"type":"` + text + `"}`} {
				elements = append(elements, intake.Element{Body: []byte(body), Length: int64(len(body))})
			}
		}
	}
	last, _ := w.rate(devnet.Feedback{AgentID: goodID})
	elements = append(elements, intake.Element{Body: asJSON(last), Length: int64(len(asJSON(last)))})
	taken, err := w.intake.FromList(heraldtest.Within(t, 20*time.Second), elements)
	heraldtest.Must(t, err)
	for i, a := range taken {
		if isLast := i == len(taken)-1; (a.Verdict == intake.Rejected) == isLast {
			t.Errorf("element %d of the list: %+v", i, a)
		}
	}

	ended := map[string]int{}
	for _, id := range ids {
		var d ledger.Delivery
		heraldtest.AwaitState(t, func() bool { d = w.row(id); return d.Status.Final() || d.Status == outcome.Held }, func() string {
			return fmt.Sprintf("%s sticks: %s %s: %s", names[id], d.Status, d.Reason, d.Error)
		})
		ended[strings.TrimSpace(string(d.Status)+" "+string(d.Reason))]++
		if d.Reason == "internal_error" {
			t.Errorf("%s: %s: %s", names[id], d.Reason, d.Error)
		}
		for _, s := range []string{d.Error, d.Endpoint, d.ToolName} {
			if !utf8.ValidString(s) || strings.ContainsRune(s, 0) || len(s) > 8<<10 {
				t.Errorf("%s: kept %.100q, %d bytes", names[id], s, len(s))
			}
		}
	}
	t.Logf("%d rows ended: %v", len(ids), ended)
	list, err := records.New(w.store).Deliveries(heraldtest.Within(t, 10*time.Second), records.Filter{Statuses: []outcome.Status{outcome.Rejected}, Reason: "invalid_job", Limit: 1000})
	if err != nil || len(list) < len(documents()) {
		t.Errorf("%d rejected rows for %d bad tasks, %v", len(list), len(documents()), err)
	}
	for _, c := range good.received() {
		var v any
		dec := json.NewDecoder(bytes.NewReader(c.Arguments))
		dec.UseNumber() // 1e999999999 is valid JSON
		if err := dec.Decode(&v); err != nil {
			t.Errorf("an agent got no JSON: %v", err)
			continue
		}
		if bad := firstBad(v); bad != "" {
			t.Errorf("an agent got %.100q", bad)
		}
	}
	log := w.log.String()
	if i := strings.Index(log, "panick"); i >= 0 {
		t.Errorf("something panicked: %.2000s", log[max(0, i-200):])
	}
	if i := strings.IndexFunc(log, func(r rune) bool { return r != '\n' && drives(r) }); i >= 0 {
		t.Errorf("the log drives a terminal: %.200q", log[max(0, i-100):])
	}
}

// drives reports whether a character must reach neither an agent's model nor a terminal.
func drives(r rune) bool {
	return unicode.IsControl(r) && r != '\t' && r != '\n' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// firstBad returns a string with such a character in a JSON value. The base64 of a file that is not JSON cannot contain
// one.
func firstBad(v any) string {
	switch v := v.(type) {
	case string:
		if strings.IndexFunc(v, drives) >= 0 || !utf8.ValidString(v) {
			return v
		}
	case []any:
		for _, e := range v {
			if bad := firstBad(e); bad != "" {
				return bad
			}
		}
	case map[string]any:
		for k, e := range v {
			if bad := firstBad(k) + firstBad(e); bad != "" {
				return bad
			}
		}
	}
	return ""
}
