//go:build thirdparty

package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/google/uuid"
)

const redisPackage = "ioredis"

// TestThirdPartyDoors: clients that are not part of Herald act like the old backend. They are redis-cli and a Node.js
// program with ioredis and fetch.
func TestThirdPartyDoors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), thirdPartyTime)
	t.Cleanup(cancel)
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	node, err := npm.Node(ctx)
	must(err)
	folder, err := npm.Install(ctx, redisPackage+"@6.0.0", thirdPartyPackages[0])
	must(err)
	agents, err := StartAgents(1)
	must(err)
	t.Cleanup(agents.Close)
	scratch := t.TempDir()
	const token = "a token of more than sixteen characters"
	site := shared.Open(ctx, t, Config{Database: "doors", Logs: filepath.Join(scratch, "logs"),
		Env: []string{"HERALD_LEGACY_QUEUE=" + LegacyList, "HERALD_REDIS_INTAKE=on", "HERALD_API_TOKEN=" + token, "HERALD_TOOLS=echo"}})
	w, err := site.Worker(WorkerConfig{Name: "worker"})
	must(err)
	must(w.Ready(ctx))
	address, err := w.Address()
	must(err)
	socket := site.Redis.Client().Options().Addr

	delivered := func(what string, ids ...uuid.UUID) {
		t.Helper()
		wait, cancel := context.WithTimeoutCause(ctx, deliveryTime, fmt.Errorf("not within %s", deliveryTime))
		defer cancel()
		began := time.Now()
		must(Until(wait, pollSlow, what+" to be delivered", func() (bool, error) {
			rows, err := site.Rows(wait)
			for _, id := range ids {
				if rows[id].Status != "delivered" {
					return false, err
				}
			}
			return true, err
		}))
		fmt.Println(NewFigures("thirdparty", what).Add("delivered", len(ids)).Add("took", time.Since(began)))
	}

	first, firstID, err := agents.OldJob(0, 1)
	must(err)
	second, secondID, err := agents.OldJob(0, 2)
	must(err)
	path, env, err := FindRedisCLI()
	must(err)
	cmd := exec.CommandContext(ctx, path, "-s", socket, "LPUSH", LegacyList, string(first), string(second), "no job")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "3" && strings.TrimSpace(string(out)) != "(integer) 3" {
		t.Fatalf("redis-cli: %v: %s", err, out)
	}
	delivered("redis-cli LPUSH", firstID, secondID)

	everything := stranger{name: "server-everything", path: "/mcp", args: []string{folder.Path(everythingPackage, "dist", "index.js"), "streamableHttp"},
		env: func(port int) []string { return []string{"PORT=" + strconv.Itoa(port)} }}
	server := everything.listen(t, &guest{Site: site, ctx: ctx, node: node, scratch: scratch})
	third, thirdID, err := agents.OldJob(0, 3)
	must(err)
	script, err := filepath.Abs(filepath.Join("testdata", "old-backend.mjs"))
	must(err)
	program := exec.CommandContext(ctx, node, script, socket, address, token, server)
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

	rows, err := site.Rows(ctx)
	must(err)
	if by := CountStatus(rows); by["delivered"] != 3 || by["rejected invalid_job"] != 1 {
		t.Errorf("%v", by)
	}
}
