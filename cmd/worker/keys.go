package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/keys"
	"github.com/agentherald/herald/internal/operator/report"
)

type keysCmd struct {
	Init      keysInitCmd      `cmd:"" help:"Make a new keyset for HERALD_KEYSET (keep it: without it stored secrets are lost)."`
	List      keysListCmd      `cmd:"" help:"List the keys of the active keyset, and the number of secrets sealed with each."`
	Rotate    keysRotateCmd    `cmd:"" help:"Make the keyset of the next step of a rotation. Roll each one out to every worker and enqueuer before the next. Do not redirect the output onto the file of the keyset in force, which the shell empties first: use --out."`
	Reencrypt keysReencryptCmd `cmd:"" help:"Seal what older keys have sealed with the key that seals now. It can be stopped and run again. Refused while a running worker does not seal with that key."`
}

// keysetFlags control how and where a keyset is written.
type keysetFlags struct {
	Cleartext bool   `help:"Write it in clear text: each reader can open all stored secrets. Without this, HERALD_MASTER_KEY encrypts it."`
	Out       string `help:"Write it into this file (mode 0600) instead of printing it: a temporary file in the same folder is synced and renamed. A file that is there is replaced only if it is a readable keyset whose keys are all in the one in force." placeholder:"FILE"`
}

// writeKeyset writes a keyset. It prints the next step only after the keyset was written.
func (f keysetFlags) writeKeyset(a *command, r keys.Rotation, err error) error {
	if err != nil {
		return err
	}
	if f.Out != "" {
		if err := keys.SaveKeyset(a.newOperator(), f.Out, r); err != nil {
			return fmt.Errorf("the keyset could not be written, so go on with the one in force: %w", err)
		}
		fmt.Fprintf(a.err, "wrote %s\n", text.Printable(f.Out))
	} else if _, err := fmt.Fprintln(a.out, r.Keyset); err != nil {
		return fmt.Errorf("the keyset could not be written, so go on with the one in force: %w", err)
	}
	if r.Next != "" {
		fmt.Fprintln(a.err, r.Next)
	}
	return nil
}

type keysInitCmd struct{ keysetFlags }

func (c *keysInitCmd) Run(a *command) error {
	keyset, err := keys.NewKeyset(a.newOperator(), c.Cleartext)
	return c.writeKeyset(a, keys.Rotation{Keyset: keyset}, err)
}

type keysRotateCmd struct {
	Add     keysAddCmd     `cmd:"" help:"Step 1: a new key that opens and does not seal yet."`
	Promote keysPromoteCmd `cmd:"" help:"Step 2: the new key seals. Then run keys reencrypt. Refused while a running worker has not loaded the new key."`
	Remove  keysRemoveCmd  `cmd:"" help:"Step 3: remove keys that no longer protect any row. Refused while a running worker seals with the key."`
}

type keysAddCmd struct{ keysetFlags }

func (c *keysAddCmd) Run(a *command) error {
	r, err := keys.Add(a.ctx, a.newOperator(), c.Cleartext, !a.faulty)
	return c.writeKeyset(a, r, err)
}

type keysPromoteCmd struct {
	keysetFlags
	Key uint32 `help:"Its id. Default: the newest." placeholder:"ID"`
}

func (c *keysPromoteCmd) Run(a *command) error {
	r, err := keys.Promote(a.ctx, a.newOperator(), c.Key, c.Cleartext)
	return c.writeKeyset(a, r, err)
}

type keysRemoveCmd struct {
	keysetFlags
	Key uint32 `arg:"" help:"Its id, as keys list shows." placeholder:"ID"`
}

func (c *keysRemoveCmd) Run(a *command) error {
	r, err := keys.Remove(a.ctx, a.newOperator(), c.Key, c.Cleartext)
	return c.writeKeyset(a, r, err)
}

type keysListCmd struct{ jsonFlag }

func (c *keysListCmd) Run(a *command) error {
	list, err := keys.List(a.ctx, a.newOperator())
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("KEY", "STATE", "SEALED WITH IT")
		for _, k := range list {
			state := "opens"
			switch {
			case k.Seals:
				state = "seals"
			case !k.Here:
				state = "missing: restore it, or the secrets that it sealed are lost"
			}
			t.addRow(k.ID, state, k.Sealed)
		}
		t.Flush()
	})
}

type keysReencryptCmd struct {
	actorFlag
	DryRun bool `help:"Only count."`
	jsonFlag
}

func (c *keysReencryptCmd) Run(a *command) error {
	r, err := keys.Reencrypt(a.ctx, a.newOperator(), c.actorName(), c.DryRun)
	if _, left := errors.AsType[*operator.LeftError](err); err != nil && !left {
		return err
	}
	return cmp.Or(err, c.printAnswer(a, r, nil, func() {
		verb := text.Plural(r.Changed, "was", "were")
		if c.DryRun {
			verb = "would be"
		}
		line := fmt.Sprintf("%d of %s %s sealed anew with key %d", r.Changed,
			text.Count(r.Looked, "secret", "secrets"), verb, r.Key)
		if r.Audit > 0 {
			line += fmt.Sprintf(" (audit %d)", r.Audit)
		}
		fmt.Fprintln(a.out, line)
		for _, e := range r.Errors {
			fmt.Fprintf(a.out, "left: %s\n", e)
		}
	}))
}

type apiTokenCmd struct {
	Create apiTokenCreateCmd `cmd:"" help:"Make a token and print it, once: only its hash is stored."`
	List   apiTokenListCmd   `cmd:"" help:"List the tokens that were made, newest first. There are few: the list has no pages."`
	Revoke apiTokenRevokeCmd `cmd:"" help:"End a token. Workers stop taking it within 5 seconds."`
}

type apiTokenCreateCmd struct {
	Name      string         `arg:"" help:"The user's name, for the audit."`
	Scope     []string       `help:"What it allows: read (see everything), enqueue (submit jobs), operate (change deliveries and agents, and see everything), direct (call tools directly, and with enqueue submit jobs that name an endpoint, headers, a template, another tool, or verifyFileHash false). May be repeated." placeholder:"SCOPE"`
	ExpiresIn *time.Duration `help:"How long it is good, as in 720h. Default: until it is revoked." placeholder:"DURATION"`
	actorFlag
	jsonFlag
}

func (c *apiTokenCreateCmd) Run(a *command) error {
	var good time.Duration
	if c.ExpiresIn != nil {
		good = *c.ExpiresIn
		if good == 0 { // which CreateAPIToken would take as for ever
			return operator.NewMisuseOf("expires-in", "%s is not longer than 0s", good)
		}
	}
	made, err := a.newOperator().CreateAPIToken(a.ctx, c.Name, c.Scope, good, c.actorName())
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
				report.Time(&k.CreatedAt), report.Time(k.LastUsedAt), report.Time(k.ExpiresAt))
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

type signingKeyCmd struct {
	List   signingKeyListCmd   `cmd:"" help:"List the keys that are published, the youngest first. There are few: the list has no pages."`
	Rotate signingKeyRotateCmd `cmd:"" help:"Make a new key, publish it at once and sign with it after a while; no worker is restarted."`
}

type signingKeyListCmd struct{ jsonFlag }

func (c *signingKeyListCmd) Run(a *command) error {
	list, err := keys.ListSigning(a.ctx, a.newOperator())
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("KEY", "STATE", "CREATED", "SIGNS FROM", "PUBLISHED UNTIL")
		for _, k := range list {
			t.addRow(k.ID, k.State, report.Time(&k.CreatedAt), report.Time(&k.ActivatesAt), report.Time(k.RetiresAt))
		}
		t.Flush()
	})
}

type signingKeyRotateCmd struct {
	After time.Duration `help:"When the new key signs: at least 1m, so that every worker publishes it before; by then agents that ask for a key they do not know find it. Others keep the directory for 5 minutes. Default: ${default}." default:"1h" placeholder:"DURATION"`
	Keep  time.Duration `help:"How long the others stay published beyond that. With --after 1m --keep 0s they are gone in a minute, as after a theft. Default: ${default}." default:"24h" placeholder:"DURATION"`
	actorFlag
	jsonFlag
}

func (c *signingKeyRotateCmd) Run(a *command) error {
	made, err := keys.RotateSigning(a.ctx, a.newOperator(), c.After, c.Keep, c.actorName())
	return c.printAnswer(a, made, err,
		func() { fmt.Fprintf(a.out, "%s signs from %s on\n", made.ID, report.Time(&made.ActivatesAt)) })
}
