package main

import (
	"fmt"
	"time"
)

type signingKeyCmd struct {
	List   signingKeyListCmd   `cmd:"" help:"List the keys that are published, the youngest first. There are few: the list has no pages."`
	Rotate signingKeyRotateCmd `cmd:"" help:"Make a new key, publish it at once and sign with it after a while; no worker is restarted."`
}

type signingKeyListCmd struct{ jsonFlag }

func (c *signingKeyListCmd) Run(a *command) error {
	list, err := a.newOperator().ListSigningKeys(a.ctx)
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("KEY", "STATE", "CREATED", "SIGNS FROM", "PUBLISHED UNTIL")
		for _, k := range list {
			t.addRow(k.ID, k.State, formatTime(&k.CreatedAt), formatTime(&k.ActivatesAt), formatTime(k.RetiresAt))
		}
		t.Flush()
	})
}

type signingKeyRotateCmd struct {
	After time.Duration `help:"When the new key signs: at least 1m, so that every worker publishes it before; by then agents that ask for a key they do not know find it. Others keep the directory for 5 minutes." default:"1h" placeholder:"DURATION"`
	Keep  time.Duration `help:"How long the others stay published beyond that. With --after 1m --keep 0s they are gone in a minute, as after a theft." default:"24h" placeholder:"DURATION"`
	actorFlag
	jsonFlag
}

func (c *signingKeyRotateCmd) Run(a *command) error {
	made, err := a.newOperator().RotateSigningKey(a.ctx, c.After, c.Keep, c.actorName())
	return c.printAnswer(a, made, err,
		func() { fmt.Fprintf(a.out, "%s signs from %s on\n", made.ID, formatTime(&made.ActivatesAt)) })
}
