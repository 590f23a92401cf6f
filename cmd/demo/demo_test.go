package main

import (
	"bytes"
	"context"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestEnvFile checks that a shell that sources demo.env gets any value unchanged, that only the owner can read the
// file, and that it is removed when the demo ends.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "demo.env")
	const commands = `[["/a b/it's","$HOME"]]`
	w := &world{}
	heraldtest.Must(t, w.writeEnvFile(path, []string{"HERALD_DATA=/tmp/x", "HERALD_STDIO_COMMANDS=" + commands}))
	file, err := os.ReadFile(path)
	heraldtest.Must(t, err)
	if got, ok := readEnvFile(file, "HERALD_STDIO_COMMANDS"); !ok || got != commands {
		t.Errorf("read %q, %t", got, ok)
	}
	if got, ok := readEnvFile(file, "DATABASE_URL"); ok {
		t.Errorf("read %q, which was not written", got)
	}
	sh := exec.Command("sh", "-c", `. "$0"; printf '%s,%s,%s' "$HERALD_DATA" "$HERALD_STDIO_COMMANDS" "$DATABASE_URL$HERALD_MASTER_KEY$HERALD_MASTER_KEY_FILE"`, path)
	sh.Env = append(os.Environ(), "DATABASE_URL=postgres://elsewhere", "HERALD_MASTER_KEY=x", "HERALD_MASTER_KEY_FILE=x")
	if out, err := sh.CombinedOutput(); err != nil || string(out) != "/tmp/x,"+commands+"," {
		t.Errorf("the shell has %q, %v", out, err)
	}
	if info, err := os.Stat(path); err != nil {
		t.Error(err)
	} else if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	heraldtest.Must(t, w.removeEnvFile())
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
	// Another demo has replaced the file.
	heraldtest.Must(t, w.writeEnvFile(path, nil))
	heraldtest.Must(t, os.WriteFile(path, []byte("another's"), 0o600))
	heraldtest.Must(t, w.removeEnvFile())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another demo's file is gone: %v", err)
	}
}

// TestDemoWithoutEnvFile checks that the demo runs without demo.env if its folder is not writable. Other terminals then
// cannot use the file.
func TestDemoWithoutEnvFile(t *testing.T) {
	t.Parallel()
	w := &world{data: t.TempDir()}
	var out bytes.Buffer
	tl := newTimeline(&out)
	kept := filepath.Join(t.TempDir(), "demo.env") // of another demo, which runs
	heraldtest.Must(t, os.WriteFile(kept, formatEnvFile([]string{"HERALD_DATA=" + w.data}), 0o600))
	heraldtest.Equal(t, "the file of a demo that ended", chooseEnvFile(kept), kept)
	path := filepath.Join(t.TempDir(), "none", "demo.env")
	err := w.openControl(path, "127.0.0.1:1", tl)
	heraldtest.Equal(t, "the file of a second demo", chooseEnvFile(kept), strings.Replace(kept, ".env", "-2.env", 1))
	(&runCmd{envFile: path}).printCommands(w, tl)
	tl.close()
	heraldtest.Must(t, errors.Join(err, w.close()))
	said := out.String()
	heraldtest.Contains(t, "said", said, "--env-file names another place", "the demo continues")
	heraldtest.Lacks(t, "said", said, ". "+path)
}

// TestDemoExplains checks that the demo prints the wait of an open delivery, and the arguments that an agent received.
func TestDemoExplains(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	next := now.Add(13 * time.Second)
	waiting := ledger.Delivery{Status: outcome.Waiting, Reason: outcome.ServerError, NextAttemptAt: &next}
	heraldtest.Equal(t, "the open delivery", describeOpen(waiting, now), "waiting server_error, again in 13s")
	var out bytes.Buffer
	tl := newTimeline(&out)
	tl.printReceived([]ledger.Delivery{{Status: outcome.Rejected}, {Status: outcome.Delivered, ToolName: "agent.receiveFeedback",
		History: []ledger.Attempt{{Arguments: []byte(`{"value":"9977"}`)}}}})
	tl.close()
	if want := "What the agent of story 2 received, as arguments of agent.receiveFeedback:\n  {\n    \"value\": \"9977\"\n  }\n"; !strings.HasPrefix(out.String(), want) {
		t.Error(out.String())
	}
}

func TestQuotePath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"/opt/herald-1.0/bin/demo.env": "/opt/herald-1.0/bin/demo.env", "/a b": "'/a b'", "/it's": `'/it'\''s'`, "/$x": "'/$x'"} {
		heraldtest.Equal(t, path, quotePath(path), want)
	}
}

func TestFaultIsASentence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func() error
		code int
		says string
	}{
		"panic":   {func() error { panic("broken") }, 1, "demo: stopped by a fault in Herald: broken."},
		"error":   {func() error { return errors.New("no chain") }, 1, "demo: no chain"},
		"stopped": {func() error { return context.Canceled }, 0, ""},
		"well":    {func() error { return nil }, 0, ""},
	} {
		var said bytes.Buffer
		if code := runGuarded(&said, c.do); code != c.code || !strings.HasPrefix(said.String(), c.says) || c.says == "" && said.Len() > 0 {
			t.Errorf("%s: %d, %s", name, code, said.String())
		}
	}
}

func TestFeedbackIsChecked(t *testing.T) {
	t.Parallel()
	large := filepath.Join(t.TempDir(), "large")
	heraldtest.Must(t, os.WriteFile(large, make([]byte, maxFeedbackFile+1), 0o600))
	for _, c := range []struct {
		name string
		give feedbackCmd
		want string // contained in the error; empty: accepted
	}{
		{"whole", feedbackCmd{Agent: "0", Value: "-12", Decimals: 18, Text: "a"}, ""},
		{"a name for an agent", feedbackCmd{Agent: "x", Value: "1"}, "--agent"},
		{"an agent below 0", feedbackCmd{Agent: "-1", Value: "1"}, "--agent"},
		{"a point in the value", feedbackCmd{Agent: "0", Value: "99.77"}, "--decimals"},
		{"a value over 127 bits", feedbackCmd{Agent: "0", Value: new(big.Int).Lsh(big.NewInt(1), 127).String()}, "--value"},
		{"too many decimals", feedbackCmd{Agent: "0", Value: "1", Decimals: 19}, "at most 18"},
		{"too large a file", feedbackCmd{Agent: "0", Value: "1", File: large}, "larger than"},
	} {
		_, err := c.give.parseFlags()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestFeedbackWithoutDemo checks that the feedback command suggests a remedy if no demo runs, or if the demo was
// killed.
func TestFeedbackWithoutDemo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "demo.env")
	give := feedbackCmd{Agent: "0", Value: "1"}
	heraldtest.Fails(t, "without a file", give.giveFeedback(t.Context(), path, os.Stderr), "no demo is running")
	heraldtest.Must(t, os.WriteFile(path, formatEnvFile([]string{"HERALD_DATA=" + t.TempDir()}), 0o600))
	heraldtest.Fails(t, "with a file of the past", give.giveFeedback(t.Context(), path, os.Stderr),
		"the demo has ended")
}

// TestMisuse checks that a wrong argument leads to exit code 2, as that of other commands does.
func TestMisuse(t *testing.T) {
	if os.Getenv("DEMO_TEST_MAIN") != "" { // this process is the one that the test starts
		os.Args = []string{"demo", "--nope"}
		main()
	}
	binary, err := os.Executable()
	heraldtest.Must(t, err)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestMisuse$")
	cmd.Env = append(os.Environ(), "DEMO_TEST_MAIN=1")
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "unknown flag --nope") {
		t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}
