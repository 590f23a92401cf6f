package main

import (
	"fmt"
	"strings"
	"time"
)

type apiTokenCmd struct {
	Create apiTokenCreateCmd `cmd:"" help:"Make a token and print it, once: only its hash is stored."`
	List   apiTokenListCmd   `cmd:"" help:"List the tokens that were made, newest first. There are few: the list has no pages."`
	Revoke apiTokenRevokeCmd `cmd:"" help:"End a token. Workers stop taking it within 5 seconds."`
}

type apiTokenCreateCmd struct {
	Name      string        `arg:"" help:"The user's name, for the audit."`
	Scope     []string      `help:"What it allows: read (see everything), enqueue (submit jobs), operate (change deliveries and agents, and see everything), direct (call tools directly, and with enqueue submit jobs that name an endpoint, headers, a template, another tool, or verifyFileHash false). May be repeated." placeholder:"SCOPE"`
	ExpiresIn time.Duration `help:"How long it is good, as in 720h. Default: until it is revoked." placeholder:"DURATION"`
	actorFlag
	jsonFlag
}

func (c *apiTokenCreateCmd) Run(a *command) error {
	made, err := a.newOperator().CreateAPIToken(a.ctx, c.Name, c.Scope, c.ExpiresIn, c.actorName())
	return c.printAnswer(a, made, err, func() { fmt.Fprintln(a.out, made.Token) })
}

type apiTokenListCmd struct{ jsonFlag }

func (c *apiTokenListCmd) Run(a *command) error {
	list, err := a.newOperator().ListAPITokens(a.ctx)
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("ID", "NAME", "SCOPES", "STATE", "CREATED", "LAST USED", "EXPIRES")
		for _, k := range list {
			state := "good"
			switch {
			case k.RevokedAt != nil:
				state = "revoked"
			case k.ExpiresAt != nil && !k.ExpiresAt.After(time.Now()):
				state = "expired"
			}
			t.addRow(k.ID, k.Name, strings.Join(k.Scopes, " "), state,
				formatTime(&k.CreatedAt), formatTime(k.LastUsedAt), formatTime(k.ExpiresAt))
		}
		t.Flush()
	})
}

type apiTokenRevokeCmd struct {
	ID string `arg:"" help:"Its id, as api-token list shows it."`
	actorFlag
}

func (c *apiTokenRevokeCmd) Run(a *command) error {
	return a.newOperator().RevokeAPIToken(a.ctx, c.ID, c.actorName())
}
