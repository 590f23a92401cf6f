package trial

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestMaskingBombs gives a worker deliveries for ten agents at once. Each agent chooses a session id, which Herald masks
// in answers, and answers with a megabyte that contains the id 100,000 times, also in escapes and in escapes of escapes.
func TestMaskingBombs(t *testing.T) {
	needLinux(t)
	const agents, id = 10, "aaaaaaaa"
	unit := strings.Repeat(id, 8) + `\u0061%61&#97;\\u0061%2561&amp;#97;`
	result := `{"content":[{"type":"text","text":"` + strings.Repeat(unit, 960<<10/len(unit)) + `"}]}`
	urls := serveAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", id)
		serveMCP(w, r, "masked", func() string { return oneTool }, func(req request) { reply(w, r, req.ID, result) })
	}), 2, agents)
	var lines strings.Builder
	for i, url := range urls {
		fmt.Fprintf(&lines, `{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
			`"action":{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"%s/mcp"}}}`+"\n", 1000+i, 1000+i, url)
	}
	w := startOneWorker(t, "masking", bombTime, 1, 2*agents, "HERALD_CALL_TIMEOUT=30s", "HERALD_LEASE=120s")
	_, _, err := w.Enqueue(w.ctx, strings.NewReader(lines.String()))
	w.must(err)
	w.must(w.AwaitFinal(w.ctx))
	rows, err := w.Rows(w.ctx)
	w.must(err)
	t.Log(NewFigures("masking", strconv.Itoa(agents)).Add("peak", w.checkMemory()), CountStatus(rows))
	if got := CountStatus(rows)["delivered"]; got != agents {
		t.Errorf("%d of %d deliveries are delivered: %v", got, agents, CountStatus(rows))
	}
}
