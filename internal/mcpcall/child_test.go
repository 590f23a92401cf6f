package mcpcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// child runs this process as an agent's command that behaves as mode says. Its result is the exit code.
func child(mode string) int {
	name, dir, _ := strings.Cut(mode, ":")
	if dir != "" {
		recordProcess(dir, os.Getpid())
	}
	switch name {
	case "exit":
		fmt.Fprintln(os.Stderr, "first line\nno database, token=child-secret")
		return 3
	case "forks": // leaves a grandchild that keeps the pipes open
		sleeper := exec.Command("sleep", "300")
		sleeper.Stdout, sleeper.Stderr = os.Stdout, os.Stderr
		if err := sleeper.Start(); err != nil {
			return 1
		}
		recordProcess(dir, sleeper.Process.Pid)
	case "daemons": // starts one process outside its session, and one that also lost its parent
		script := exec.Command("sh", "-c", "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
		left := exec.Command("sleep", "300")
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		said, err := script.Output()
		pid, err2 := strconv.Atoi(strings.TrimSpace(string(said)))
		if err = errors.Join(err, err2, left.Start()); err != nil {
			return 1
		}
		recordProcess(dir, pid)
		recordProcess(dir, left.Process.Pid)
	case "pool": // a worker with such a command, which runs until it is killed
		p := must(NewPool(Config{Guard: must(netguard.New(netguard.Config{})), StdioCommands: [][]string{{os.Args[0]}}, Supervised: true}))
		must(p.Call(context.Background(), command("daemons:"+filepath.Join(dir, "command")), Request{Tool: "pid"}))
		fmt.Println("called")
		hang()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "noisy":
		go func() {
			for {
				fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 1000))
			}
		}()
	case "floods": // sends many requests
		for i := range 5000 {
			fmt.Printf(`{"jsonrpc":"2.0","id":"q%d","method":"ping"}`+"\n", i)
		}
	case "farewell": // when its input ends, it sends a request and works for a moment before it exits
		answerLines(answerLine)
		fmt.Println(`{"jsonrpc":"2.0","id":"q","method":"ping"}`)
		<-time.After(300 * time.Millisecond)
		must(0, os.WriteFile(filepath.Join(dir, "done"), nil, 0o600))
		return 0
	}
	if answer := lineAnswers(dir)[name]; answer != nil {
		answerLines(answer)
		return 0
	}
	s := server.NewMCPServer("child", "1")
	for tool, answer := range map[string]func(r mcp.CallToolRequest) string{
		"env": func(mcp.CallToolRequest) string { return strings.Join(os.Environ(), "\n") },
		"pid": func(mcp.CallToolRequest) string { return strconv.Itoa(os.Getpid()) },
		"slow": func(r mcp.CallToolRequest) string {
			awaitSignal(r.GetString("until", ""))
			return strconv.Itoa(os.Getpid())
		},
		"die": func(mcp.CallToolRequest) string {
			os.Exit(7)
			return ""
		},
		"hang": func(mcp.CallToolRequest) string {
			hang()
			return ""
		},
	} {
		s.AddTool(mcp.NewToolWithRawSchema(tool, "", json.RawMessage(`{"type":"object"}`)), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(answer(r)), nil
		})
	}
	if err := server.NewStdioServer(s).Listen(context.Background(), os.Stdin, os.Stdout); err != nil {
		return 1
	}
	if name == "stubborn" {
		hang() // ignores the end of its input too
	}
	return 0
}

// newSignal creates a named pipe, which a command waits for with awaitSignal. The function that it returns ends the
// wait.
func newSignal(t *testing.T, path string) (give func()) {
	t.Helper()
	heraldtest.Must(t, syscall.Mkfifo(path, 0o600))
	return func() {
		t.Helper()
		pipe, err := os.OpenFile(path, os.O_RDWR, 0)
		heraldtest.Must(t, err)
		t.Cleanup(func() { _ = pipe.Close() })
	}
}

// awaitSignal opens the named pipe for reading, which blocks until a writer opens it.
func awaitSignal(path string) {
	if pipe, err := os.Open(path); err == nil {
		_ = pipe.Close()
	}
}

func answerLine(line string) {
	var req struct{ ID json.RawMessage }
	if json.Unmarshal([]byte(line), &req) == nil && req.ID != nil {
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"h","version":"0"},"content":[],"tools":[]}}`+"\n", req.ID)
	}
}

// lineAnswers returns the modes of a command that answers by hand. Each mode is called with each line of the input.
func lineAnswers(dir string) map[string]func(line string) {
	lines, called := 0, false
	numeric := func(line string) { // supports only numeric ids and no ping
		if json.Unmarshal([]byte(line), &struct{ ID *int32 }{}) != nil {
			os.Exit(1)
		}
		if !called && !strings.Contains(line, `"ping"`) {
			answerLine(line)
		}
	}
	return map[string]func(line string){
		"simple": numeric,
		"busy": func(line string) { // is silent from the first call on
			called = called || strings.Contains(line, "tools/call")
			numeric(line)
		},
		"strict": func(line string) { // supports only the old handshake and exits on any other first message
			if lines++; lines == 1 && !strings.Contains(line, `"initialize"`) {
				os.Exit(1)
			}
			answerLine(line)
		},
		"mute": func(line string) { // ignores unknown messages
			if !strings.Contains(line, "server/discover") {
				answerLine(line)
			}
		},
		"later": func(line string) { // answers a call when the signal in its folder is given; exits when its input ends
			if !strings.Contains(line, "tools/call") {
				answerLine(line)
				return
			}
			go func() {
				awaitSignal(filepath.Join(dir, "answer"))
				answerLine(line)
			}()
		},
		"bridge": func(line string) { // its remote server forgets the session after one call
			if !called || !strings.Contains(line, "tools/call") {
				called = called || strings.Contains(line, "tools/call")
				answerLine(line)
				return
			}
			var req struct{ ID json.RawMessage }
			must(0, json.Unmarshal([]byte(line), &req))
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"No valid session ID provided"}}`+"\n", req.ID)
		},
		"deaf": func(line string) { // stops reading after initialize and initialized
			answerLine(line)
			if lines++; lines == 2 {
				hang()
			}
		},
		"endless": func(line string) { // answers a call with a line without end
			for strings.Contains(line, "tools/call") {
				if _, err := fmt.Print(strings.Repeat("x", 1<<16)); err != nil {
					os.Exit(0)
				}
			}
			answerLine(line)
		},
	}
}

// answerLines calls answer for each line of the input until it ends.
func answerLines(answer func(line string)) {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer(line)
	}
}

// recordProcess records in a mode's folder that it started a process.
func recordProcess(dir string, pid int) {
	_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(pid)), nil, 0o600)
}
