//go:build thirdparty

package trial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/google/uuid"
)

const redisPackage = "ioredis"

// TestThirdPartyDoors: clients that are not part of Herald act like the old backend. They are redis-cli and a Node.js
// program with ioredis and fetch.
func TestThirdPartyDoors(t *testing.T) {
	g := newGuest(t)
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	folder := g.install(t, redisPackage+"@6.0.0", thirdPartyPackages[0])
	agents, err := StartAgents(1)
	must(err)
	t.Cleanup(agents.Close)
	const token = "a token of more than sixteen characters"
	w := g.open(t, "doors", append(patience(), "HERALD_LEGACY_QUEUE="+LegacyList, "HERALD_REDIS_INTAKE=on", "HERALD_API_TOKEN="+token, "HERALD_TOOLS=echo")...)
	address, err := w.Address()
	must(err)
	socket := g.Redis.Client().Options().Addr
	delivered := func(what string, ids ...uuid.UUID) {
		t.Helper()
		must(g.awaitDelivered(what, 1, ids...))
		fmt.Println(NewFigures("thirdparty", what).Add("delivered", len(ids)))
	}

	first, firstID, err := agents.OldJob(0, 1)
	must(err)
	second, secondID, err := agents.OldJob(0, 2)
	must(err)
	path, env, err := FindRedisCLI()
	must(err)
	cmd := exec.CommandContext(g.ctx, path, "-s", socket, "LPUSH", LegacyList, string(first), string(second), "no job")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "3" && strings.TrimSpace(string(out)) != "(integer) 3" {
		t.Fatalf("redis-cli: %v: %s", err, out)
	}
	delivered("redis-cli LPUSH", firstID, secondID)

	everything := stranger{name: "server-everything", path: "/mcp", args: []string{folder.Path(everythingPackage, "dist", "index.js"), "streamableHttp"},
		env: func(port int) []string { return []string{"PORT=" + strconv.Itoa(port)} }}
	server := everything.listen(t, g)
	third, thirdID, err := agents.OldJob(0, 3)
	must(err)
	script, err := filepath.Abs(filepath.Join("testdata", "old-backend.mjs"))
	must(err)
	program := exec.CommandContext(g.ctx, g.node, script, socket, address, token, server)
	program.Env = npm.Environment("MODULES=" + folder.Path(redisPackage))
	program.Stdin = bytes.NewReader(third)
	var failed bytes.Buffer
	program.Stderr = &failed
	out, err = program.Output()
	if err != nil {
		t.Fatalf("the old backend's program: %v: %s", err, &failed)
	}
	var got struct {
		Length            int
		Answered, Refused struct {
			Status int
			Body   struct {
				Success bool
				Result  json.RawMessage
				Error   string
			}
		}
	}
	must(json.Unmarshal(out, &got))
	if a := got.Answered; got.Length != 1 || a.Status != 200 || !a.Body.Success || !strings.Contains(string(a.Body.Result), `Echo: feedback 95`) {
		t.Errorf("the call was answered %s", out)
	}
	if a := got.Refused; a.Status != 400 || a.Body.Success || !strings.HasPrefix(a.Body.Error, "tool_name: ") {
		t.Errorf("the call of another tool was answered %s", out)
	}
	delivered("ioredis LPUSH and fetch /mcp/call", thirdID)

	rows, err := g.Rows(g.ctx)
	must(err)
	if by := CountStatus(rows); by["delivered"] != 3 || by["rejected invalid_job"] != 1 {
		t.Errorf("%v", by)
	}
}
