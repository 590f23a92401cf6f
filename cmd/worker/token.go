package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/report"
	"github.com/agentherald/herald/internal/operator/tokens"
)

type tokenCmd struct {
	Set    tokenSetCmd    `cmd:"" help:"Store the token that an agent wants, or the OAuth client that gets tokens for it, from stdin, and release deliveries held because this token was missing."`
	Login  tokenLoginCmd  `cmd:"" help:"Log in for an agent that requires a person: prints the address to open in a browser, and stores the tokens."`
	List   tokenListCmd   `cmd:"" help:"List stored tokens: for whom, for which origin and path, until when. Never the tokens. All of them, without pages: an operator stored each."`
	Remove tokenRemoveCmd `cmd:"" help:"Delete an agent's token for an origin. OAuth tokens are also revoked at their authorization server, if it supports that."`
	Import tokenImportCmd `cmd:"" help:"Store the tokens of the old backend's table agent_mcp_tokens: from its database, or CSV of agent_id,token, as COPY … TO STDOUT CSV writes it."`
}

func (a *command) newTokens() tokens.Tokens { return tokens.Tokens{Operator: a.newOperator()} }

type tokenSetCmd struct {
	tokens.SetRequest
	actorFlag
	jsonFlag
}

func (c *tokenSetCmd) Run(a *command) error {
	c.Request.Actor, c.ReadSecret = c.actorName(), a.readStdin
	change, err := a.newTokens().Set(a.ctx, c.SetRequest)
	return c.printChange(a, change, err)
}

// printChange prints the result of storing or removing a token.
func (f jsonFlag) printChange(a *command, change tokens.Change, err error) error {
	return f.printAnswer(a, change, err, func() { fmt.Fprintln(a.out, strings.Join(change.Said, "\n")) })
}

// readStdin reads a secret from stdin, up to limit bytes. It refuses a terminal.
func (a *command) readStdin(what string, limit int64) (string, error) {
	if f, ok := a.in.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return "",
				operator.NewMisuse("give %s on stdin, from a file or a program, not by typing it: "+
					"worker token … < FILE", what)
		}
	}
	// The limit has room for a line end, and for one byte to detect a longer secret.
	raw, err := io.ReadAll(io.LimitReader(untilStopped{a.ctx, a.in}, limit+3))
	if err != nil {
		return "", fmt.Errorf("read %s from stdin: %w", what, err)
	}
	return string(raw), nil
}

// untilStopped reads until ctx ends. A read that is pending then lasts until the process ends.
type untilStopped struct {
	ctx  context.Context
	from io.Reader
}

func (r untilStopped) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	read, own, done := r.from.Read, make([]byte, len(p)), make(chan result, 1)
	go func() {
		n, err := read(own)
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		return copy(p, own[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

type tokenLoginCmd struct {
	tokens.LoginRequest
	actorFlag
	jsonFlag
}

func (c *tokenLoginCmd) Run(a *command) error {
	c.Request.Actor, c.ReadSecret = c.actorName(), a.readStdin
	change, err := a.newTokens().LogIn(a.ctx, c.LoginRequest)
	return c.printChange(a, change, err)
}

type tokenListCmd struct{ jsonFlag }

func (c *tokenListCmd) Run(a *command) error {
	list, err := a.newTokens().List(a.ctx)
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("AGENT", "ORIGIN", "PATH", "SCHEME", "HEADER", "ISSUER", "KEY", "STORED", "EXPIRES", "STATE")
		for _, l := range list {
			t.addRow(l.Agent, l.Origin, text.Shorten(l.Path), l.Scheme, l.Header, text.Shorten(l.Issuer), l.Key,
				report.Time(&l.UpdatedAt), report.Time(l.ExpiresAt), l.State)
		}
		t.Flush()
	})
}

type tokenRemoveCmd struct {
	agentChange
	Origin string `required:"" help:"The origin it was stored for, as token list shows, with or without its path." placeholder:"URL"`
}

func (c *tokenRemoveCmd) Run(a *command) error {
	change, err := a.newTokens().Remove(a.ctx, c.AgentRef, c.Origin, c.actorName())
	return c.printChange(a, change, err)
}

type tokenImportCmd struct {
	tokens.ImportRequest
	Yes bool `help:"Store them. Without this it is only shown where each would go."`
	actorFlag
	jsonFlag
}

func (c *tokenImportCmd) Run(a *command) error {
	c.Stdin, c.Environ = untilStopped{a.ctx, a.in}, a.environ
	store := a.newTokens()
	read, err := store.ReadImport(a.ctx, c.ImportRequest)
	if err != nil {
		return err
	}
	if !c.JSON { // before anything is stored
		if err := printImport(a, read); err != nil {
			return err
		}
	}
	if c.Yes && read.Good > 0 {
		err = store.StoreImport(a.ctx, read, c.actorName())
	}
	failed := c.printAnswer(a, read, nil, func() { fmt.Fprintln(a.out, report.Import(read, c.Yes)) })
	if failed == nil && err == nil {
		return read.End()
	}
	return errors.Join(err, failed)
}

func printImport(a *command, read *tokens.Import) error {
	t := a.newTable("LINE", "AGENT", "ORIGIN", "PATH", "HEADER", "WHERE, OR WHY NOT")
	for _, r := range read.Rows {
		where := r.Where
		if r.Problem != "" {
			where = "not stored: " + r.Problem
		}
		t.addRow(r.Line, r.Agent, r.Origin, text.Shorten(r.Path), r.Header, where)
	}
	return t.Flush()
}

// withoutToken returns the error of a command line without the token that the command line may contain by mistake.
func withoutToken(args []string, err error) error {
	quoted := len(args) > 0 && args[0] == "token" && slices.ContainsFunc(args[1:], func(s string) bool {
		_, value, _ := strings.Cut(s, "=")
		return len(s) > 3 && strings.Contains(err.Error(), s) || len(value) > 3 && strings.Contains(err.Error(), value)
	})
	if !quoted && !secretFlag(err) {
		return err
	}
	return errors.New("the command line has something that is not understood; " +
		"a token is given on stdin and never there, where the shell's history and ps keep it: " +
		"if it was stored there, replace it. `worker token --help` lists the other commands")
}

// secretFlag reports whether the command line has an unknown flag whose name suggests that its value is a secret.
func secretFlag(err error) bool {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag ")
	name, _, _ = strings.Cut(strings.ToLower(name), ",") // a suggested flag may follow the name
	return ok && slices.ContainsFunc([]string{"secret", "token", "password", "key"},
		func(word string) bool { return strings.Contains(name, word) })
}
