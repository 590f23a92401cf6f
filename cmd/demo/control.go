package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/agentherald/herald/internal/testing/devnet"
)

// openControl lets other terminals use the demo: `demo feedback` through a socket in the data folder, and commands
// through the file of its environment.
func (w *world) openControl(envFile, listen string, tl *timeline) error {
	path := socketPath(w.data)
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for feedback: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return fmt.Errorf("close the feedback's socket to others: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /feedback", func(rw http.ResponseWriter, r *http.Request) { w.takeFeedback(rw, r, tl) })
	w.serveOn(l, mux)
	env := append([]string(nil), w.env...)
	for i, v := range env {
		if strings.HasPrefix(v, listenPrefix) {
			env[i] = listenPrefix + listen // a free port may have replaced the requested one
		}
	}
	if err := w.writeEnvFile(envFile, env); err != nil {
		tl.printLine(fmt.Sprintf("%v; the demo continues, but other terminals cannot reach it", err))
	}
	return nil
}

const listenPrefix = "HERALD_LISTEN="

// takeFeedback gives feedback on the chain. It answers when the worker has accepted the feedback.
func (w *world) takeFeedback(rw http.ResponseWriter, r *http.Request, tl *timeline) {
	var g given
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, 2*maxFeedbackFile)).Decode(&g); err != nil ||
		g.Agent == nil || g.Value == nil {
		http.Error(rw, "this is no feedback: use `demo feedback` of the same version", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), feedbackTime)
	defer cancel()
	f := devnet.Feedback{AgentID: g.Agent, Value: g.Value, ValueDecimals: g.Decimals, Tag1: g.Tag1, Tag2: g.Tag2,
		Endpoint: g.Endpoint}
	var err error
	switch {
	case len(g.File) > 0:
		w.addBytes(&f, g.File)
	case g.Text != "":
		err = w.addFile(&f, g.Text)
	}
	if err != nil {
		http.Error(rw, "the file was not put on IPFS: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_, mined, err := w.net.GiveFeedback(ctx, w.clientAccount(), f)
	if err != nil {
		http.Error(rw, fmt.Sprintf("the chain did not take the feedback; the demo's agents are 0 to 4: %v", err),
			http.StatusBadRequest)
		return
	}
	id, err := tl.awaitDelivery(ctx, mined.TxHash, "")
	if err != nil {
		http.Error(rw, "the feedback is in block "+mined.BlockNumber.String()+", but the worker did not accept "+
			"it yet: see `delivery list`", http.StatusGatewayTimeout)
		return
	}
	_ = json.NewEncoder(rw).Encode(receipt{mined.BlockNumber.Uint64(), mined.TxHash.Hex(), id.String()})
}
