package servers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// environment returns the values of ${NAME} in the tests. Every value is a secret. A shell leaves a line end after a value
// if its file comes from Windows.
func environment(name string) (string, bool) {
	v, ok := map[string]string{"TOKEN": "hunter2hunter2\r\n", "HOST": "hunter2.example", "EMPTY": "", "BINARY": "hunter2\xff", "LINE": "hunter2\nx",
		"LONG": "hunter2" + strings.Repeat("x", maxValue), "NUL": "hunter2\x00"}[name]
	return v, ok
}

func read1(t testing.TB, entry string) Server {
	t.Helper()
	f, err := parseAll("servers.json", []byte(`{"servers": {"8453:42": `+entry+`}}`), environment)
	if err != nil {
		t.Fatalf("%s: %v", entry, err)
	}
	s, ok := f.Lookup(8453, "42")
	if !ok {
		t.Fatalf("%s: nothing is said about 8453:42", entry)
	}
	return s
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		entry   string
		want    Server
		headers map[string]string
	}{
		{`{}`, Server{}, nil},
		{`{"enabled": false}`, Server{Policy: policy.Policy{Enabled: new(bool)}}, nil},
		{`{"url": "https://a.example/mcp"}`, Server{Display: "https://a.example/mcp",
			endpoint: &mcpcall.Endpoint{Transport: "http", URL: "https://a.example/mcp", Listed: true}}, nil},
		{`{"transport": "sse", "url": "http://10.0.0.1:8080/sse?key=x"}`, Server{Display: "http://10.0.0.1:8080/sse",
			endpoint: &mcpcall.Endpoint{Transport: "sse", URL: "http://10.0.0.1:8080/sse?key=x", Listed: true}}, nil},
		{`{"transport": "http", "url": "https://${HOST}/mcp/${TOKEN}?k=${TOKEN}", "headers": {"x-key": "${TOKEN}", "X-Plain": "$${TOKEN} $5"},
			"auth": {"type": "bearer", "token": "${TOKEN}"}, "enabled": true, "tools": ["agent.receiveFeedback", "${HOST}"], "timeoutMs": 2500, "onUnknown": "hold"}`,
			Server{Policy: policy.Policy{Enabled: new(true), OnUnknown: "hold"}, Tools: []string{"agent.receiveFeedback", "hunter2.example"}, Timeout: 2500 * time.Millisecond,
				Display:  "https://${HOST}/mcp/${TOKEN}",
				endpoint: &mcpcall.Endpoint{Transport: "http", URL: "https://hunter2.example/mcp/hunter2hunter2?k=hunter2hunter2", Listed: true}},
			map[string]string{"X-Key": "hunter2hunter2", "X-Plain": "${TOKEN} $5", "Authorization": "Bearer hunter2hunter2"}},
		{`{"url": "https://a.example", "auth": {"type": "header", "header": "x-api-key", "token": "t"}}`, Server{Display: "https://a.example",
			endpoint: &mcpcall.Endpoint{Transport: "http", URL: "https://a.example", Listed: true}}, map[string]string{"X-Api-Key": "t"}},
		{`{"command": "/usr/bin/agent", "args": ["--key", "${TOKEN}", ""], "env": {"B": "${TOKEN}", "A_1": ""}, "workingDir": "/srv"}`,
			Server{Display: "stdio:/usr/bin/agent", endpoint: &mcpcall.Endpoint{Transport: "stdio", Command: "/usr/bin/agent",
				Args: []string{"--key", "hunter2hunter2", ""}, Env: []string{"A_1=", "B=hunter2hunter2"}, Dir: "/srv", Listed: true}}, nil},
		{`{"transport": "stdio", "command": "${TOKEN}"}`, Server{Display: "stdio:${TOKEN}",
			endpoint: &mcpcall.Endpoint{Transport: "stdio", Command: "hunter2hunter2", Listed: true}}, nil},
	} {
		got := read1(t, tt.entry)
		headers := map[string]string{}
		if ep, ok := got.Endpoint(); ok {
			for name, value := range ep.Headers {
				headers[name] = value.Reveal()
			}
			if (len(ep.Secrets) > 0) != strings.Contains(tt.entry, ` "${`) && !strings.Contains(tt.entry, "https://${") || slices.ContainsFunc(ep.Secrets, func(s secret.Secret) bool { return !strings.HasPrefix(s.Reveal(), "hunter2") }) {
				t.Errorf("%s: %d secrets", tt.entry, len(ep.Secrets))
			}
			ep.Headers, ep.Secrets = nil, nil
			got.endpoint = &ep
		}
		heraldtest.Equal(t, "the server "+tt.entry, got, tt.want)
		if !maps.Equal(headers, tt.headers) {
			t.Errorf("%s: headers %v, want %v", tt.entry, headers, tt.headers)
		}
	}
}

// TestBroken checks that each error names the line and path of the fault, and never contains a value of the
// environment.
func TestBroken(t *testing.T) {
	t.Parallel()
	entry := func(s string) string { return "{\n \"servers\": {\n  \"8453:42\": " + s + "}}" }
	at := func(path, problem string) string { return `servers.json:3: servers["8453:42"]` + path + ": " + problem }
	many := func(n int, each func(int) string) string {
		var parts []string
		for i := range n {
			parts = append(parts, each(i))
		}
		return strings.Join(parts, ",")
	}
	for _, tt := range []struct{ file, want string }{
		{"", "servers.json:1: is not JSON: it ends too early"},
		{"{\n\n\"servers\": {,}}", "servers.json:3: servers: is not JSON: invalid character ','"},
		{`{"servers": {}} {}`, "servers.json:1: has text after the end of its JSON"},
		{"{\"servers\": {}}\xff", "servers.json: is not UTF-8 text"},
		{"\ufeff{}", "servers.json:1: is not JSON"},
		{`[]`, "servers.json:1: must be an object"},
		{`{}`, `servers.json:1: has no "servers": {"CHAIN:AGENT": {…}}`},
		{"{\n\"server\": {}}", "servers.json:2: server: is unknown: there is servers"},
		{`{"servers": []}`, "servers.json:1: servers: must be an object"},
		{`{"servers": {}, "servers": {}}`, "servers.json:1: servers: is given twice"},
		{"{\"servers\": {\"1:1\": {},\n\"1:1\": {}}}", `servers.json:2: servers["1:1"]: is given twice`},
		{`{"servers": {"42": {}}}`, `servers.json:1: servers.42: is not CHAIN:AGENT, as in 8453:42`},
		{`{"servers": {"0:42": {}}}`, `servers.json:1: servers["0:42"]: is not CHAIN:AGENT`},
		{`{"servers": {"1:042": {}}}`, `servers.json:1: servers["1:042"]: is not CHAIN:AGENT`},
		{`{"servers": {"1:": {}}}`, `servers.json:1: servers["1:"]: is not CHAIN:AGENT`},
		{`{"servers": {"9223372036854775808:1": {}}}`, `servers.json:1: servers["9223372036854775808:1"]: is not CHAIN:AGENT`},
		{`{"servers": {"1:` + strings.Repeat("9", 78) + `": {}}}`, `servers.json:1: servers["1:` + strings.Repeat("9", 62) + `…"]: names an agent whose number is over 256 bits`},
		{entry(`null`), at("", "must be an object")},
		{entry(`{"ulr": "x"}`), at(".ulr", "is unknown: there is transport, url, headers, auth,")},
		{entry("{\"url\": \"https://a.example\",\n\"url\": \"https://b.example\"}"), `servers.json:4: servers["8453:42"].url: is given twice`},
		{entry(`{"enabled": "no"}`), at(".enabled", "must be true or false")},
		{entry(`{"enabled": null}`), at(".enabled", "must be true or false")},
		{entry(`{"timeoutMs": 999}`), at(".timeoutMs", "must be a whole number of milliseconds, 1000 to 3600000")},
		{entry(`{"timeoutMs": 1e4}`), at(".timeoutMs", "must be a whole number")},
		{entry(`{"timeoutMs": "3000"}`), at(".timeoutMs", "must be a whole number")},
		{entry(`{"timeoutMs": 99999999999999999999}`), at(".timeoutMs", "must be a whole number")},
		{entry(`{"onUnknown": "drop"}`), at(".onUnknown", "must be resend or hold")},
		{entry(`{"onUnknown": "${TOKEN}"}`), at(".onUnknown", "must be resend or hold")},
		{entry(`{"tools": []}`), at(".tools", "names no tool: leave it out to allow all")},
		{entry(`{"tools": ["a b"]}`), at(".tools", "holds at [0] no name of a tool")},
		{entry(`{"tools": [1]}`), at(".tools[0]", "must be a string")},
		{entry(`{"tools": "x"}`), at(".tools", "must be a list of at most 256 strings")},
		{entry(`{"transport": "ws", "url": "wss://a.example"}`), at(".transport", "must be http, sse or stdio")},
		{entry(`{"transport": "in-process", "command": "x"}`), at(".transport", "must be http, sse or stdio")},
		{entry(`{"transport": ""}`), at(".transport", "is empty: leave it out")},
		{entry(`{"transport": 5}`), at(".transport", "must be a string")},
		{entry(`{"transport": "http"}`), at("", "has no url, which transport http needs")},
		{entry(`{"transport": "stdio"}`), at("", "has no command, which transport stdio needs")},
		{entry(`{"url": "a.example"}`), at(".url", "is not an http or https URL")},
		{entry(`{"url": "ftp://${TOKEN}/"}`), at(".url", "is not an http or https URL")},
		{entry(`{"url": "https://%zz${TOKEN}"}`), at(".url", "is not an http or https URL")},
		{entry(`{"url": "https://u:${TOKEN}@a.example"}`), at(".url", "must have no user and password: say them in auth or headers")},
		{entry(`{"url": "https://a.example/#x"}`), at(".url", "must have no fragment")},
		{entry(`{"url": "https://a.example/` + strings.Repeat("x", maxURL) + `"}`), at(".url", "is longer than 4096 bytes")},
		{entry(`{"url": "https://a.example", "command": "x"}`), at(".command", "is for transport stdio only")},
		{entry(`{"url": "https://a.example", "env": {}}`), at(".env", "is for transport stdio only")},
		{entry(`{"command": "x", "url": "https://a.example", "transport": "stdio"}`), at(".url", "is for transports http and sse")},
		{entry(`{"command": "x", "auth": {"type": "bearer", "token": "t"}}`), at(".auth", "is for transports http and sse; a command takes its secrets from env")},
		{entry(`{"headers": {"X-Key": "${TOKEN}"}}`), at(".headers", "needs a url or a command in the same entry")},
		{entry(`{"env": {"A": "${TOKEN}"}}`), at(".env", "needs a url or a command in the same entry")},
		{entry(`{"url": "https://a.example", "headers": {"a b": "x"}}`), at(`.headers["a b"]`, "is no name of an HTTP header")},
		{entry("{\"url\": \"https://a.example\", \"headers\": {\n\"content-type\": \"${TOKEN}\"}}"), `servers.json:4: servers["8453:42"].headers.content-type: sets the header Content-Type, which belongs to HTTP`},
		{entry(`{"url": "https://a.example", "headers": {"mcp-session-id": "x"}}`), at(".headers.mcp-session-id", "sets the header Mcp-Session-Id, which belongs")},
		{entry(`{"url": "https://a.example", "auth": {"type": "header", "header": "Host", "token": "${TOKEN}"}}`), at(".auth", "sets the header Host, which belongs")},
		{entry(`{"url": "https://a.example", "headers": {"A": "${LINE}"}}`), at(".headers.A", "has characters that an HTTP header must not have, perhaps a line feed at its end")},
		{entry(`{"url": "https://a.example", "headers": {"A": ""}}`), at(".headers.A", "is empty: leave it out")},
		{entry(`{"url": "https://a.example", "headers": {"A": "x", "a": "y"}}`), at(".headers.a", "sets the header A a second time")},
		{entry(`{"url": "https://a.example", "headers": ["A"]}`), at(".headers", "must be an object")},
		{entry(`{"url": "https://a.example", "headers": {` + many(maxList+1, func(i int) string { return fmt.Sprintf(`"h%d": "x"`, i) }) + `}}`), at(".headers", "has more than 256 entries")},
		{entry(`{"url": "https://a.example", "headers": {"Authorization": "x"}, "auth": {"type": "bearer", "token": "t"}}`), at(".auth", "sets the header Authorization a second time")},
		{entry(`{"url": "https://a.example", "auth": "x"}`), at(".auth", "must be an object")},
		{entry(`{"url": "https://a.example", "auth": {}}`), at(".auth", "has no type: bearer or header")},
		{entry(`{"url": "https://a.example", "auth": {"type": "oauth", "token": "t"}}`), at(".auth.type", "must be bearer or header; this version knows no other way")},
		{entry(`{"url": "https://a.example", "auth": {"type": "bearer"}}`), at(".auth", "has no token")},
		{entry(`{"url": "https://a.example", "auth": {"type": "bearer", "token": "t", "header": "X"}}`), at(".auth.header", "is for type header only")},
		{entry(`{"url": "https://a.example", "auth": {"type": "header", "token": "t"}}`), at(".auth", "has no header")},
		{entry(`{"url": "https://a.example", "auth": {"type": "bearer", "token": "${LINE}"}}`), at(".auth", "has characters that an HTTP header must not have")},
		{entry(`{"url": "https://a.example", "auth": {"type": "bearer", "secret": "t"}}`), at(".auth.secret", "is unknown: there is type, token, header")},
		{entry(`{"command": "x", "args": "y"}`), at(".args", "must be a list of at most 256 strings")},
		{entry(`{"command": "x", "args": ["a", {}]}`), at(".args[1]", "must be a string")},
		{entry(`{"command": "x", "args": [` + many(maxList+1, func(int) string { return `"a"` }) + `]}`), at(".args", "must be a list of at most 256 strings")},
		{entry(`{"command": "x", "env": {"A=B": "y"}}`), at(`.env["A=B"]`, "is no name of an environment variable")},
		{entry(`{"command": "x", "workingDir": "srv"}`), at(".workingDir", "must be an absolute path")},
		{entry(`{"command": "${MISSING}"}`), at(".command", "names ${MISSING}, which is not set in the environment of this process")},
		{entry(`{"command": "${EMPTY}"}`), at(".command", "names ${EMPTY}, which is not set")},
		{entry(`{"command": "${TOKEN"}`), at(".command", "has a ${ that begins no name of a variable")},
		{entry(`{"command": "${TO KEN}"}`), at(".command", "has a ${ that begins no name of a variable")},
		{entry(`{"command": "${}"}`), at(".command", "has a ${ that begins no name of a variable")},
		{entry(`{"command": "${BINARY}"}`), at(".command", "has a NUL, or is not UTF-8 text")},
		{entry(`{"command": "${NUL}"}`), at(".command", "has a NUL, or is not UTF-8 text")},
		{entry(`{"command": "a\u0000"}`), at(".command", "has a NUL, or is not UTF-8 text")},
		{entry(`{"command": "${LONG}"}`), at(".command", "is longer than 65536 bytes with its expanded names")},
		{entry(`{"args": [[[[[[[[[]]]]]]]]]}`), at(".args[0][0][0][0][0]", "is nested deeper than 8 levels")},
		{`{"servers": {` + many(maxServers+1, func(i int) string { return fmt.Sprintf(`"1:%d":{}`, i) }) + `}}`, "servers.json:1: servers: names more than 10000 servers"},
	} {
		f, err := parseAll("servers.json", []byte(tt.file), environment)
		if err == nil || f != nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%.200s\n got %v\nwant %s…", tt.file, err, tt.want)
		}
		if !errors.As(err, new(*Error)) || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%.200s: %v", tt.file, err)
		}
	}
}

// TestManyFaults checks that all faults are reported together, up to a limit.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	_, err := parseAll("f", []byte("{\"servers\": {\"1:1\": {\"url\": 1,\n\"enabled\": 1},\n\"1:2\": {\"x\": 1}}}"), nil)
	if got := fmt.Sprint(err); strings.Count(got, "\n") != 2 || !strings.Contains(got, "f:3: ") {
		t.Errorf("%s", got)
	}
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, `,"1:%d": {"x": 1}`, i)
	}
	_, err = parseAll("f", []byte(`{"servers": {`+b.String()[1:]+`}}`), nil)
	if got := fmt.Sprint(err); strings.Count(got, "\n") != maxFaults || !strings.HasSuffix(got, "f: has more faults, which are not shown") {
		t.Errorf("%s", got)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "servers.json")
	for name, tt := range map[string]struct {
		make func() error
		want string
	}{
		"missing": {func() error { return nil }, "cannot be read: no such file or directory"},
		"folder":  {func() error { return os.Mkdir(path, 0o700) }, "is no file"},
		"pipe":    {func() error { return syscall.Mkfifo(path, 0o600) }, "is no file"},
		"open to its group": {func() error {
			return errors.Join(os.WriteFile(path, []byte(`{"servers": {}}`), 0o600), os.Chmod(path, 0o640))
		},
			"is open to others than its owner (mode 0640), and it may hold secrets and names commands: run chmod 600 on it"},
		"others write it": {func() error {
			return errors.Join(os.WriteFile(path, []byte(`{"servers": {}}`), 0o600), os.Chmod(path, 0o602))
		},
			"is open to others than its owner (mode 0602), and it may hold secrets and names commands: run chmod 600 on it"},
		"large": {func() error { return os.WriteFile(path, make([]byte, maxFile+1), 0o600) }, "is longer than 1048576 bytes"},
	} {
		heraldtest.Must(t, tt.make())
		if _, err := Load(path, nil); err == nil || err.Error() != path+": "+tt.want {
			t.Errorf("%s: %v", name, err)
		}
		_ = os.Remove(path)
	}
	heraldtest.Must(t, os.WriteFile(path, []byte(`{"servers": {"10:2": {}, "9:10": {}, "9:9": {"enabled": false}}}`), 0o600))
	f, err := Load(path, nil)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "keys", fmt.Sprint(f.Keys()), "[9:9 9:10 10:2]")
	if _, ok := f.Lookup(9, "11"); ok {
		t.Error("9:11 is known")
	}
	if s, ok := f.Lookup(9, "9"); !ok || !s.Disables() {
		t.Errorf("%+v %v", s, ok)
	}
}

// TestFileOfRoot checks that the group may read root's file if the worker is not root.
func TestFileOfRoot(t *testing.T) {
	t.Parallel()
	const root, worker, other = 0, 10001, 10002
	for _, tt := range []struct {
		mode        fs.FileMode
		owner, self int
		open        bool
	}{
		{0o400, root, worker, false},
		{0o440, root, worker, false},
		{0o640, root, worker, false},
		{0o660, root, worker, true},
		{0o444, root, worker, true},
		{0o440, root, root, true},
		{0o440, worker, worker, true},
		{0o440, other, worker, true},
	} {
		file, err := fstest.MapFS{"f": {Mode: tt.mode, Sys: &syscall.Stat_t{Uid: uint32(tt.owner)}}}.Stat("f")
		heraldtest.Must(t, err)
		heraldtest.Equal(t, fmt.Sprintf("%+v", tt), isOpen(file, tt.self), tt.open)
	}
}

// TestFind checks that Find ignores faults in other agents' entries, which occur in a shell without the worker's
// environment.
func TestFind(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	heraldtest.Must(t, os.WriteFile(path, []byte(`{"servers": {"1:1": {"url": "https://a.example/${TOKEN}"}, "1:2": {"url": "https://b.example/${UNSET}"}, "x": {"ulr": 1}}}`), 0o600))
	s, ok, err := Find(path, environment, 1, "1")
	if ep, listed := s.Endpoint(); err != nil || !ok || !listed || ep.URL != "https://a.example/hunter2hunter2" {
		t.Errorf("%v %v %v", s, ok, err)
	}
	if _, ok, err := Find(path, environment, 1, "3"); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	_, _, err = Find(path, environment, 1, "2")
	heraldtest.Fails(t, "the error", err, `servers["1:2"].url: names ${UNSET}, which is not set`)
	if f, err := Load(path, environment); err == nil || f != nil {
		t.Error("Load is not strict")
	}
	heraldtest.Must(t, os.WriteFile(path, []byte(`{"servers": {},}`), 0o600))
	_, _, err = Find(path, environment, 1, "1")
	heraldtest.Fails(t, "the error", err, "is not JSON")
	_, _, err = Find(path+"x", environment, 1, "1")
	heraldtest.Fails(t, "the error", err, "cannot be read")
}

// TestHeadersAreMcpcalls checks that the file accepts exactly the headers that calls may send.
func TestHeadersAreMcpcalls(t *testing.T) {
	t.Parallel()
	guard, err := netguard.New(netguard.Config{})
	heraldtest.Must(t, err)
	pool, err := mcpcall.NewPool(mcpcall.Config{Guard: guard, CallTimeout: time.Second, Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = pool.Close(context.Background()) })
	over, cancel := context.WithCancel(t.Context())
	cancel() // no connection is opened
	for _, name := range []string{"Accept", "content-type", "Host", "Idempotency-Key", "Last-Event-Id", "MCP-SESSION-ID", "Proxy-Authorization", "Te", "Authorization", "X-Api-Key", "Cookie", "User-Agent", "Proxy-Authenticate", "Content-Language",
		"Mcp-Param-X", "Origin", "Date", "Range", "Traceparent"} {
		_, bad := parseAll("f", []byte(`{"servers": {"1:1": {"url": "https://a.example", "headers": {"`+name+`": "x"}}}}`), nil)
		_, err := pool.Tools(over, mcpcall.Endpoint{Transport: "http", URL: "https://a.example", Headers: map[string]secret.Secret{name: secret.New("x")}, Listed: true}, true)
		if errors.As(err, new(*mcpcall.TransportRefusedError)) != (bad != nil) {
			t.Errorf("%s: the file says %v, a call %v", name, bad, err)
		}
	}
}

func TestAllows(t *testing.T) {
	t.Parallel()
	names := []string{"agent.receiveFeedback", "agent_receiveFeedback", "receiveFeedback"}
	for _, tt := range []struct{ tools, want []string }{
		{nil, names}, {[]string{"x", names[0]}, names}, {[]string{names[2], names[1]}, names[1:]}, {[]string{"x"}, nil},
	} {
		heraldtest.Equal(t, fmt.Sprintf("%q allow", tt.tools), (Server{Tools: tt.tools}).Allows(names), tt.want)
	}
}

// TestNothingIsPrinted checks that no formatting verb prints a value of the environment.
func TestNothingIsPrinted(t *testing.T) {
	t.Parallel()
	s := read1(t, `{"url": "https://a.example/${TOKEN}", "auth": {"type": "bearer", "token": "${TOKEN}"}}`)
	c := read1(t, `{"command": "x", "args": ["${TOKEN}"], "env": {"A": "${TOKEN}"}}`)
	for _, v := range []any{s, &s, Change{New: s, Old: c}, Diff{Changed: []Change{{New: s, Old: c}}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			heraldtest.Lacks(t, fmt.Sprintf("%s prints", verb), fmt.Sprintf(verb, v), "hunter2")
		}
	}
}

// FuzzParse checks that any file is either read or refused with an existing line, and that no error contains a value of
// the environment.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"servers": {"8453:42": {"transport": "http", "url": "https://${HOST}/x", "headers": {"A": "${TOKEN}"}, "auth": {"type": "bearer", "token": "${TOKEN}"},
		"enabled": true, "tools": ["a"], "timeoutMs": 30000, "onUnknown": "resend"}, "1:0": {"command": "a", "args": ["$${x}", "${LONG}"], "env": {"A": "${LINE}"}, "workingDir": "/"}}}`,
		`{"servers": {"1:1": {"url": "https://u:${TOKEN}@x"}}}`, `{"servers": {"${TOKEN}": {"${TOKEN}": "${TOKEN}"}}}`, "{\"servers\":\n\n{\"\\u0000\": 1e999}}", `{"a":[[[[[[[[[[`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "hunter2") {
			return
		}
		file, err := parseAll("f", []byte(text), environment)
		if err == nil {
			for _, k := range file.Keys() {
				s, ok := file.Lookup(k.ChainID, k.AgentID)
				if again, problem := parseKey(k.String()); !ok || problem != "" || again != k {
					t.Fatalf("%v is known as %v, %s", k, again, problem)
				}
				if ep, ok := s.Endpoint(); ok && (!ep.Listed || s.Display == "" || (ep.URL == "") == (ep.Command == "")) {
					t.Fatalf("%v is called at %+v", k, ep)
				}
				heraldtest.Lacks(t, fmt.Sprintf("%v shows", k), fmt.Sprintf("%+v %s", s, s.Display), "hunter2")
			}
			return
		}
		heraldtest.Lacks(t, "the error", err.Error(), "hunter2")
		if fault, ok := errors.AsType[*Error](err); !ok || fault.Line > 1+strings.Count(text, "\n") || fault.Line < 0 {
			t.Fatalf("%v", err)
		}
	})
}
