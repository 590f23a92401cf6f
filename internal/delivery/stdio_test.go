package delivery

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// stdioAgent is an environment variable that makes this test's binary an agent on stdin and stdout (2025-11-25).
const stdioAgent = "HERALD_TEST_STDIO_AGENT"

// speakStdio answers calls with the agent's process, folder, arguments and environment, and the lengths of the values
// that will be masked.
func speakStdio() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var req struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.Unmarshal(in.Bytes(), &req)
		result := `{}`
		switch req.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"a command","version":"1"}}`
		case "tools/list":
			result = `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			dir, _ := os.Getwd()
			about, _ := json.Marshal(fmt.Sprintf("%d %s %d %d %q %q", os.Getpid(), dir, len(strings.Join(os.Args[1:], " ")), len(os.Getenv("SECRET")), os.Args[1:], os.Environ()))
			result = `{"content":[{"type":"text","text":` + string(about) + `}]}`
		}
		if len(req.ID) > 0 {
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", req.ID, result)
		}
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "read a request:", err)
	}
}

// TestCommandOfTheServersFile: a command of the servers file runs although HERALD_STDIO_COMMANDS does not list it. It
// gets the file's arguments, environment and folder, and nothing of Herald's. One process serves all deliveries until
// the file changes. A job that names the command is refused.
func TestCommandOfTheServersFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newOperator(w)
	k := w.newWorker(func(c *Config) { c.Servers = o.server })
	w.serve(k)
	dir := t.TempDir()
	id := w.register(nil)
	o.say(id, map[string]any{"command": os.Args[0], "args": []string{"--key", "${KEY}"}, "env": map[string]string{stdioAgent: "1", "SECRET": "${SECRET}"}, "workingDir": dir})
	answer := func() (pid string) {
		t.Helper()
		d := w.until(w.accept(w.feedback(id)), outcome.Delivered)
		heraldtest.Equal(t, "the row shows", d.Endpoint, "stdio:"+os.Args[0])
		var result struct{ Content []struct{ Text string } }
		if err := json.Unmarshal(d.Result, &result); err != nil || len(result.Content) != 1 {
			t.Fatalf("%v %s", err, d.Result)
		}
		pid, rest, _ := strings.Cut(result.Content[0].Text, " ")
		about := fmt.Sprintf(`%s %d %d ["--key" "******"] `, dir, len("--key hunter2KEY"), len("hunter2SECRET"))
		if !strings.HasPrefix(rest, about) || !strings.Contains(rest, `"SECRET=******"`) || strings.Contains(rest, "PWD=") || strings.Count(rest, "=") > 5 {
			t.Errorf("it was run so: %s", rest)
		}
		return pid
	}
	pid := answer()
	heraldtest.Equal(t, "the process of the next call", answer(), pid)
	own := map[string]any{"resolveEndpoint": false, "endpoint": map[string]any{"transport": "stdio", "command": os.Args[0], "args": []string{"--key", "hunter2KEY"}}}
	w.ends(w.accept(with(w.feedback(id), own)), outcome.Rejected, outcome.TransportRefused, 1)
	heraldtest.Lacks(t, "the log", w.log.String(), "hunter2")
}

// TestTiedCommandOfAJob: a job is refused if it names a listed command that is not tied to its agent.
func TestTiedCommandOfAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	theirs, own := w.register(nil), w.register(nil)
	k := w.newWorker(func(c *Config) {
		guard := must(netguard.New(netguard.Config{}))
		c.Caller = newPool(t, mcpcall.Config{Guard: guard, Logger: w.logger(),
			StdioCommands: [][]string{{"/bin/false"}}})
		c.MayRun = func(_ uint64, _ common.Address, id string, argv []string) bool {
			return id == fmt.Sprint(own) && slices.Equal(argv, []string{"/bin/false"})
		}
	})
	w.serve(k)
	action := map[string]any{"resolveEndpoint": false, "endpoint": map[string]any{"transport": "stdio", "command": "/bin/false"}}
	w.ends(w.accept(with(w.feedback(theirs), action)), outcome.Rejected, outcome.TransportRefused, 1)
}
