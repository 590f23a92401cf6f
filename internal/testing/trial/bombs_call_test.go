package trial

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

const (
	hangingCalls = 32
	hangingSlots = 64 // half of them are for agents without a success, so that all hanging agents can be called at once
)

// TestHangingLargeArguments gives a worker 32 files of two megabytes, each for an agent that accepts the call and never
// answers, and at the same time a delivery to a healthy agent. Every byte of the files is a quotation mark, which takes
// two bytes in JSON.
func TestHangingLargeArguments(t *testing.T) {
	needLinux(t)
	h := &hanger{done: make(chan struct{})}
	h.urls = serveAt(t, h, 1, hangingCalls)
	w := startOneWorker(t, "hanging", bombTime, 1, hangingSlots, "HERALD_LEASE=120s", "HERALD_CALL_TIMEOUT=60s")
	var lines strings.Builder
	for i := range hangingCalls {
		lines.WriteString(h.line(i))
	}
	_, _, err := w.Enqueue(w.ctx, strings.NewReader(lines.String()))
	w.must(err)
	// A delivery that was put off comes back, and is put off again: each is counted once.
	putOff := map[uuid.UUID]bool{}
	w.must(Until(w.ctx, pollSlow, "every delivery to be in its call or put off", func() (bool, error) {
		rows, err := w.Rows(w.ctx)
		for id, row := range rows {
			if row.Status == "waiting" && row.Reason == "agent_busy" {
				putOff[id] = true
			}
		}
		return int(h.calls.Load())+len(putOff) >= hangingCalls, err
	}))
	w.checkCalled(w.agents.Line(0, 0))
	t.Log(NewFigures("hanging", strconv.Itoa(hangingCalls)).Add("in_flight", h.calls.Load()).Add("peak", w.checkMemory()))
	close(h.done) // otherwise the worker waits for its calls
}

// hanger serves large files, and agents that never answer a call.
type hanger struct {
	urls  []string
	calls atomic.Int64
	done  chan struct{} // closed: held calls end
}

func (h *hanger) file(i int) []byte {
	return append(strconv.AppendInt(nil, int64(i), 10), bytes.Repeat([]byte{'"'}, documentMax-1<<10)...)
}

func (h *hanger) line(i int) string {
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"feedbackURI":"%s/file/%d","feedbackHash":%q,"action":{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"%s/mcp/%d"},`+
		`"includeFileContent":true,"verifyFileHash":true}}`+"\n", 1000+i, 1000+i, h.urls[i], i, crypto.Keccak256Hash(h.file(i)), h.urls[i], i)
}

func (h *hanger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if kind == "file" {
		number, _ := strconv.Atoi(name)
		_, _ = w.Write(h.file(number))
		return
	}
	serveMCP(w, r, "hanger", func() string { return oneTool }, func(request) {
		h.calls.Add(1)
		select {
		case <-r.Context().Done():
		case <-h.done:
		}
	})
}
