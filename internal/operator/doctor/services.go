package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
)

// checkServices looks at Postgres and Redis: the configured ones, or those of the worker that runs here.
func (d *doctor) checkServices(ctx context.Context) {
	database, redis := d.Settings.DatabaseURL, d.Settings.RedisURL
	if database.IsZero() || redis.IsZero() {
		run, ok := d.findEmbedded()
		if ok && database.IsZero() {
			database = secret.New(run.DatabaseURL)
		}
		if ok && redis.IsZero() {
			redis = secret.New(run.RedisURL)
		}
		if !ok {
			d.findPrograms(ctx)
		}
	}
	if !database.IsZero() {
		d.checkPostgres(ctx, database)
	}
	if !redis.IsZero() {
		d.checkRedis(ctx, redis, d.Settings.RedisURL.IsZero())
	}
}

// findEmbedded finds the worker that runs services of its own on the data folder.
func (d *doctor) findEmbedded() (embedded.RunFile, bool) {
	dir := d.Backend.DataDir()
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		lacks := "an embedded Postgres and Redis"
		if !d.Settings.DatabaseURL.IsZero() {
			lacks = "an embedded Redis"
		}
		d.add("embedded", nil, fmt.Sprintf("No worker is running on %s. Starting one would launch %s there.", dir,
			lacks))
		return run, false
	case err != nil:
		d.add("embedded", err, "")
		return run, false
	}
	d.run = run
	d.add("embedded", nil, fmt.Sprintf("a worker (process %d) runs on %s, web UI http://%s/monitor/", run.PID, dir,
		run.Listen))
	return run, true
}

func (d *doctor) checkPostgres(ctx context.Context, url secret.Secret) {
	st, err := store.Open(store.Config{URL: url, MaxConns: 2})
	if err != nil {
		d.add("postgres", err, "")
		return
	}
	defer st.Close()
	if err := d.runBounded(ctx, st.Ping); err != nil {
		d.add("postgres", err, "")
		return
	}
	d.add("postgres", nil, "answers")
	var pending int
	err = d.runBounded(ctx, func(ctx context.Context) error {
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
		d.checkTokens(ctx, st)
		d.countStuck(ctx, st)
	}
}

// countStuck counts what is held or overdue, by reason, with the command that shows it.
func (d *doctor) countStuck(ctx context.Context, st *store.Store) {
	var found []store.Stuck
	err := d.runBounded(ctx, func(ctx context.Context) (err error) {
		found, err = st.ListStuck(ctx)
		return err
	})
	if err != nil {
		d.add("deliveries", err, "")
		return
	}
	for _, s := range found {
		line := "worker delivery list --status " + string(s.Status)
		if s.Reason != "" {
			line += " --reason " + s.Reason
		}
		if s.Status == store.Held {
			d.warn("deliveries", fmt.Sprintf("%d held, %s: `%s`, and `worker delivery show ID` says what to do",
				s.Count, s.Reason, line))
			continue
		}
		why := strings.TrimSpace(string(s.Status) + " " + s.Reason)
		d.warn("deliveries", fmt.Sprintf("%d overdue for more than a minute, %s: no worker takes them; see the worker's log, and `%s`", s.Count, why, line))
	}
	if len(found) == 0 {
		d.add("deliveries", nil, "none is held or overdue")
	}
}

func (d *doctor) checkRedis(ctx context.Context, url secret.Secret, embeddedOne bool) {
	q, err := queue.Open(queue.Config{URL: url, Logger: d.Logger})
	if err != nil {
		d.add("redis", err, "")
		return
	}
	defer q.Close()
	err = d.runBounded(ctx, q.Ping)
	if err == nil && !embeddedOne {
		err = d.runBounded(ctx, q.CheckServer)
	}
	d.add("redis", err, "answers")
	if err == nil && !embeddedOne {
		d.checkAppendOnly(ctx, q)
	}
}

// checkAppendOnly looks whether Redis keeps tasks over a restart. Deliveries are not lost without: the worker
// dispatches them again.
func (d *doctor) checkAppendOnly(ctx context.Context, q *queue.Queue) {
	var state string
	err := d.runBounded(ctx, func(ctx context.Context) (err error) {
		state, err = q.AppendOnly(ctx)
		return err
	})
	switch {
	case err != nil:
		d.warn("redis", err.Error())
	case state == "no":
		d.warn("redis", "appendonly is no: a restart of Redis loses the tasks in it, and they are late by minutes until the worker has dispatched them again. "+
			"Set appendonly yes")
	}
}

// findPrograms looks for those that a worker would run, without fetching them.
func (d *doctor) findPrograms(ctx context.Context) {
	var p embedded.Programs
	_ = d.runBounded(ctx, func(ctx context.Context) error {
		p = embedded.FindPrograms(ctx, d.Backend.DataDir(), d.Settings.CacheDir)
		return nil
	})
	d.judgePrograms(p)
}

// judgePrograms judges what was found: what a start makes up for is a warning.
func (d *doctor) judgePrograms(p embedded.Programs) {
	var none *embedded.NoBinariesError
	switch {
	case !d.Settings.DatabaseURL.IsZero():
	case errors.As(p.NoPostgres, &none):
		d.warn("programs", p.NoPostgres.Error()+". A start tries to fetch it; `worker embedded fetch` does that now")
	default:
		d.add("programs", p.NoPostgres, p.Postgres)
	}
	switch {
	case !d.Settings.RedisURL.IsZero():
	case errors.Is(p.NoRedis, embedded.ErrNoRedis):
		d.warn("programs", p.NoRedis.Error()+": the queue would run inside the worker (miniredis), which is for small installations. Install redis-server, or set REDIS_URL")
	default:
		d.add("programs", p.NoRedis, p.Redis)
	}
}

func (d *doctor) checkChains(ctx context.Context) {
	if len(d.Settings.Chains) == 0 {
		d.add("chains", nil, "none has an RPC URL: only jobs that name their endpoint can be delivered (RPC_URL_<chainId>)")
	}
	for _, id := range slices.Sorted(maps.Keys(d.Settings.Chains)) {
		c := d.Settings.Chains[id]
		name := fmt.Sprintf("chain %d", id)
		if c.RPCURL.IsZero() {
			d.add(name, fmt.Errorf("has registries but no RPC URL: set RPC_URL_%d", id), "")
			continue
		}
		client, err := chain.New(chain.Config{ChainID: id, URL: c.RPCURL, Logger: d.Logger})
		if err == nil {
			err = d.runBounded(ctx, client.Ping)
			client.Close()
		}
		if err == nil && !c.Known {
			err = fmt.Errorf("no registries are known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d", id, id)
		}
		usual := c.Registries.Default()
		d.add(name, err, fmt.Sprintf("answers; identity registry %s, reputation registry %s", usual.Identity,
			usual.Reputation))
	}
}

// checkCommands looks for the programs that registrations may name.
func (d *doctor) checkCommands() {
	for _, argv := range d.Settings.StdioCommands {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			err = fmt.Errorf("%s of HERALD_STDIO_COMMANDS cannot be run: %w", argv[0], err)
		}
		d.add("stdio", err, path+" can be run")
	}
}

// checkServersFile reads the servers file as the worker would.
func (d *doctor) checkServersFile() {
	if d.Settings.ServersFile == "" {
		return
	}
	file, err := servers.Load(d.Settings.ServersFile, os.LookupEnv)
	if err != nil {
		d.add("servers", err, "")
		return
	}
	d.add("servers", nil, fmt.Sprintf("HERALD_SERVERS_FILE names %d agents", len(file.Keys())))
}

// checkGateways asks those of IPFS and Arweave whether they answer. One of several that does not is made up for by the
// others.
func (d *doctor) checkGateways(ctx context.Context) {
	content, err := d.Backend.OpenContent()
	if err != nil {
		d.add("gateways", err, "")
		return
	}
	defer content.Close()
	probed := content.Fetcher.Probe(ctx)
	away := 0
	for _, p := range probed {
		if p.Err != nil {
			away++
		}
	}
	for _, p := range probed {
		switch {
		case p.Err == nil:
			d.add("gateways", nil, p.Gateway+" answers")
		case away < len(probed):
			d.warn("gateways", fmt.Sprintf("%s: %v; the others of IPFS_GATEWAYS are asked instead", p.Gateway, p.Err))
		default:
			d.add("gateways", fmt.Errorf("%s: %w; no gateway of IPFS_GATEWAYS answers, and documents in IPFS cannot be fetched", p.Gateway, p.Err), "")
		}
	}
}
