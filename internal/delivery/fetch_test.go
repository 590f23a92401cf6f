package delivery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/crypto"
)

// TestFileDisagrees: the operator sees which fields of a file contradict its event. The agent's call does not change.
func TestFileDisagrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	w.serve(k)
	const lies = `{"agentRegistry":"eip155:31337:0x0000000000000000000000000000000000000001","clientAddress":"0x0000000000000000000000000000000000000002","value":1,"valueDecimals":0,"tag1":"slow","text":"x"}`
	for name, c := range map[string]struct{ file, want string }{
		"it repeats the event": {`{"value":99.77,"tag1":"uptime","text":"x"}`, ""},
		"it contradicts it":    {lies, "agentRegistry, clientAddress, value, valueDecimals, tag1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			a := newAgent(t)
			cid := must(w.gateway.AddFile([]byte(c.file)))
			j, client := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "uptime", URI: "ipfs://" + cid.String(), Hash: crypto.Keccak256Hash([]byte(c.file))})
			d := w.until(w.accept(j), store.Delivered)
			heraldtest.Equal(t, "the row says", strings.Join(d.FileDisagrees, ", "), c.want)
			// The row is committed before its steps are traced and its log line is written.
			line := fmt.Sprintf("msg=\"delivery attempted\" delivery=%s", d.ID)
			heraldtest.Await(t, "the log line", func() bool { return strings.Contains(w.log.String(), line) })
			_, after, _ := strings.Cut(w.log.String(), line)
			after, _, _ = strings.Cut(after, "\n")
			if logged := strings.Contains(after, "fileDisagrees="+strings.ReplaceAll(c.want, ", ", ",")); logged != (c.want != "") {
				t.Errorf("the log says %s", after)
			}
			_, step := k.seen(d.ID, "fetch")
			if told := strings.HasSuffix(step.Detail, "; the file disagrees with the event in "+c.want+": the event wins"); told != (c.want != "") {
				t.Errorf("the time line says %s", step.Detail)
			}
			args := a.received()[0].args(t)
			if args["value"] != "9977" || args["tag1"] != "uptime" || args["clientAddress"] != client.Address.Hex() || args["fileVerification"] != "raw" ||
				strings.Contains(string(a.received()[0].Arguments), "isagree") {
				t.Errorf("the agent was told %v", args)
			}
		})
	}
}
