package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

// finding is one line of the doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Text  string `json:"text"`
}

var errSick = errors.New("something is wrong, see above")

// Run checks what the worker needs. It starts nothing and changes nothing.
func (c *doctorCmd) Run(a *app) error {
	d := &doctor{app: a}
	d.add("configuration", nil, "every variable can be read and none contradicts another")
	d.services()
	d.chains()
	d.commands()
	d.servers()
	sick := false
	for _, f := range d.findings {
		sick = sick || !f.OK
		if !c.JSON {
			mark := "ok  "
			if !f.OK {
				mark = "FAIL"
			}
			fmt.Fprintf(a.out, "%s  %-14s %s\n", mark, f.Check, printable(f.Text))
		}
	}
	if c.JSON {
		if err := writeJSON(a, d.findings); err != nil {
			return err
		}
	}
	if sick {
		return errSick
	}
	return nil
}

type doctor struct {
	*app
	findings []finding
}

func (d *doctor) add(check string, err error, text string) {
	if err != nil {
		text = err.Error()
	}
	d.findings = append(d.findings, finding{check, err == nil, text})
}

func (d *doctor) within(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	return do(ctx)
}

// services looks at Postgres and Redis: the configured ones, or those of the worker that runs here.
func (d *doctor) services() {
	database, redis := d.cfg.DatabaseURL, d.cfg.RedisURL
	if database.IsZero() || redis.IsZero() {
		run, ok := d.embedded()
		if ok && database.IsZero() {
			database = secret.New(run.DatabaseURL)
		}
		if ok && redis.IsZero() {
			redis = secret.New(run.RedisURL)
		}
	}
	if !database.IsZero() {
		d.postgres(database)
	}
	if !redis.IsZero() {
		d.redis(redis, d.cfg.RedisURL.IsZero())
	}
	if !d.cfg.Keyset.IsZero() {
		_, err := service.Keyset(d.cfg)
		d.add("keyset", err, "HERALD_KEYSET can be used")
	}
}

// embedded finds the worker that runs services of its own on the data folder.
func (d *doctor) embedded() (embedded.RunFile, bool) {
	dir := service.DataDir(d.cfg)
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		d.add("embedded", nil, "no worker runs on "+dir+"; one would start there what has no URL")
		return run, false
	case err != nil:
		d.add("embedded", err, "")
		return run, false
	}
	d.add("embedded", nil, fmt.Sprintf("a worker (process %d) runs on %s, web UI http://%s/monitor/", run.PID, dir, run.Listen))
	return run, true
}

func (d *doctor) postgres(url secret.Secret) {
	st, err := store.Open(store.Config{URL: url, MaxConns: 2})
	if err != nil {
		d.add("postgres", err, "")
		return
	}
	defer st.Close()
	if err := d.within(st.Ping); err != nil {
		d.add("postgres", err, "")
		return
	}
	d.add("postgres", nil, "answers")
	var pending int
	err = d.within(func(ctx context.Context) error {
		all, err := store.Migrations(ctx, url)
		for _, m := range all {
			if m.AppliedAt.IsZero() {
				pending++
			}
		}
		return err
	})
	if err == nil && pending > 0 {
		err = fmt.Errorf("%d are pending: run `worker migrate`", pending)
	}
	d.add("migrations", err, "all applied")
	if err == nil {
		d.tokens(st)
	}
}

func (d *doctor) redis(url secret.Secret, embeddedOne bool) {
	q, err := queue.Open(queue.Config{URL: url, Logger: d.log})
	if err != nil {
		d.add("redis", err, "")
		return
	}
	defer q.Close()
	err = d.within(q.Ping)
	if err == nil && !embeddedOne {
		err = d.within(q.CheckServer)
	}
	d.add("redis", err, "answers")
}

func (d *doctor) chains() {
	if len(d.cfg.Chains) == 0 {
		d.add("chains", nil, "none has an RPC URL: only jobs that name their endpoint can be delivered (RPC_URL_<chainId>)")
	}
	for _, id := range slices.Sorted(maps.Keys(d.cfg.Chains)) {
		c := d.cfg.Chains[id]
		name := fmt.Sprintf("chain %d", id)
		if c.RPCURL.IsZero() {
			d.add(name, fmt.Errorf("has registries but no RPC URL: set RPC_URL_%d", id), "")
			continue
		}
		client, err := chain.New(chain.Config{ChainID: id, URL: c.RPCURL, Logger: d.log})
		if err == nil {
			err = d.within(client.Ping)
			client.Close()
		}
		if err == nil && !c.Known {
			err = fmt.Errorf("no registries are known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d", id, id)
		}
		d.add(name, err, fmt.Sprintf("answers; identity registry %s, reputation registry %s", c.Registries.Identity, c.Registries.Reputation))
	}
}

// commands looks for the programs that registrations may name.
func (d *doctor) commands() {
	for _, argv := range d.cfg.StdioCommands {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			err = fmt.Errorf("%s of HERALD_STDIO_COMMANDS cannot be run: %w", argv[0], err)
		}
		d.add("stdio", err, path+" can be run")
	}
}

// servers reads the servers file as the worker would.
func (d *doctor) servers() {
	if d.cfg.ServersFile == "" {
		return
	}
	file, err := servers.Load(d.cfg.ServersFile, os.LookupEnv)
	if err != nil {
		d.add("servers", err, "")
		return
	}
	d.add("servers", nil, fmt.Sprintf("HERALD_SERVERS_FILE names %d agents", len(file.Keys())))
}

type embeddedCmd struct {
	Fetch embeddedFetchCmd `cmd:"" help:"Fetch Postgres and Redis into the cache if this machine lacks them; the system is not changed."`
}

type embeddedFetchCmd struct{}

func (c *embeddedFetchCmd) Run(a *app) error {
	return embedded.Fetch(a.ctx, embedded.FetchConfig{CacheDir: a.cfg.CacheDir, Logger: a.log})
}
