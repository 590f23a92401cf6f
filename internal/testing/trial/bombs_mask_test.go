package trial

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMaskingBombs gives a worker deliveries for ten agents at once. Each agent chooses a session id, which Herald masks
// in answers, and answers with a megabyte that contains the id 100,000 times, also in escapes and in escapes of escapes.
func TestMaskingBombs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the most memory that a process has held")
	}
	const agents, id = 10, "aaaaaaaa"
	unit := strings.Repeat(id, 8) + `\u0061%61&#97;\\u0061%2561&amp;#97;`
	result := `{"content":[{"type":"text","text":"` + strings.Repeat(unit, 960<<10/len(unit)) + `"}]}`
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", id)
		serveMCP(w, r, "masked", func() string { return oneTool }, func(req request) { reply(w, r, req.ID, result) })
	})}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	var lines strings.Builder
	for i := range agents {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.2.%d:0", i+1))
		heraldtest.Must(t, err)
		serving.Go(func() { _ = server.Serve(l) })
		fmt.Fprintf(&lines, `{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
			`"action":{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"http://%s/mcp"}}}`+"\n", 1000+i, 1000+i, l.Addr())
	}
	w := startOneWorker(t, "masking", bombTime, 1, 2*agents, "HERALD_CALL_TIMEOUT=30s", "HERALD_LEASE=120s")
	_, _, err := w.Enqueue(w.ctx, strings.NewReader(lines.String()))
	w.must(err)
	w.must(w.AwaitFinal(w.ctx))
	peak, err := w.worker.Status()
	w.must(err)
	rows, err := w.Rows(w.ctx)
	w.must(err)
	t.Log(NewFigures("masking", strconv.Itoa(agents)).Add("peak", peak.VmHWM>>20), CountStatus(rows))
	if got := CountStatus(rows)["delivered"]; got != agents {
		t.Errorf("%d of %d deliveries are delivered: %v", got, agents, CountStatus(rows))
	}
	if peak.VmHWM > mostMemory {
		t.Errorf("the worker held %d MiB, %d are allowed", peak.VmHWM>>20, mostMemory>>20)
	}
}
