package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// feedbackTime bounds the time until a feedback is mined and accepted by the worker.
	feedbackTime = 30 * time.Second
	// maxFeedbackFile is the largest file that Herald fetches by default, in bytes.
	maxFeedbackFile = 2 << 20
)

type feedbackCmd struct {
	Agent    string `help:"The agent's number: 0 to 4 are the stories' agents." default:"0"`
	Value    string `help:"The value, a whole number; with --decimals 2, 9977 is 99.77." required:""`
	Decimals uint8  `help:"Decimals of the value (0 to 18)."`
	Tag1     string `name:"tag1" help:"First tag."`
	Tag2     string `name:"tag2" help:"Second tag."`
	Endpoint string `help:"The endpoint that the feedback is about."`
	Text     string `help:"Text of a feedback file that the demo makes and puts on its IPFS." xor:"file"`
	File     string `help:"A feedback file of your own, put on the demo's IPFS as it is." type:"existingfile" xor:"file"`
}

// given is the request that the command sends to the demo, and receipt is the response.
type (
	given struct {
		Agent, Value   *big.Int
		Decimals       uint8
		Tag1, Tag2     string
		Endpoint, Text string
		File           []byte
	}
	receipt struct {
		Block       uint64
		Transaction string
		Delivery    string
	}
)

// parseFlags validates the values. The registry would reject invalid ones without a reason.
func (c *feedbackCmd) parseFlags() (given, error) {
	agent, ok := new(big.Int).SetString(c.Agent, 10)
	if !ok || agent.Sign() < 0 {
		return given{}, fmt.Errorf("--agent %q: give the agent's number, 0 to 4", c.Agent)
	}
	value, ok := new(big.Int).SetString(c.Value, 10)
	if !ok || value.BitLen() > 127 {
		return given{}, fmt.Errorf("--value %q: give a whole number below 2^127; --decimals says where its point is",
			c.Value)
	}
	if c.Decimals > 18 {
		return given{}, fmt.Errorf("--decimals %d: at most 18", c.Decimals)
	}
	g := given{Agent: agent, Value: value, Decimals: c.Decimals, Tag1: c.Tag1, Tag2: c.Tag2, Endpoint: c.Endpoint,
		Text: c.Text}
	if c.File != "" {
		var err error
		if g.File, err = readBounded(c.File); err != nil {
			return given{}, err
		}
	}
	return g, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	body, err := io.ReadAll(io.LimitReader(f, maxFeedbackFile+1))
	if err == nil && len(body) > maxFeedbackFile {
		err = fmt.Errorf("%s is larger than %d bytes, which Herald would not fetch", path, maxFeedbackFile)
	}
	return body, err
}

// giveFeedback sends the feedback to the running demo, which has the client's key and the IPFS gateway.
func (c *feedbackCmd) giveFeedback(ctx context.Context, envFile string, out io.Writer) error {
	g, err := c.parseFlags()
	if err != nil {
		return err
	}
	file, err := os.ReadFile(envFile)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no demo is running (there is no %s): "+
			"start `make demo` in another terminal, and wait for its stories", envFile)
	}
	if err != nil {
		return err
	}
	data, ok := readEnvFile(file, "HERALD_DATA")
	if !ok {
		return fmt.Errorf("%s names no HERALD_DATA: it is not a demo's", envFile)
	}
	ctx, cancel := context.WithTimeout(ctx, feedbackTime)
	defer cancel()
	r, err := postFeedback(ctx, data, g)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "mined     block %d, transaction %s\n", r.Block, r.Transaction)
	fmt.Fprintf(out, "accepted  delivery %s\n", r.Delivery)
	fmt.Fprintf(out, "look      . %s; %s delivery show %s\n", envFile, besideProgram("worker"), r.Delivery)
	return nil
}

func socketPath(data string) string { return filepath.Join(data, "demo.sock") }

func postFeedback(ctx context.Context, data string, g given) (receipt, error) {
	body, _ := json.Marshal(g) // cannot fail: it encodes strings and numbers
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socketPath(data))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://demo/feedback", bytes.NewReader(body))
	if err != nil {
		return receipt{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return receipt{}, errors.New("the demo has ended: start `make demo` again")
		}
		return receipt{}, fmt.Errorf("the demo did not answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return receipt{}, errors.New(strings.TrimSpace(string(text)))
	}
	var r receipt
	return r, json.NewDecoder(io.LimitReader(res.Body, 4096)).Decode(&r)
}
