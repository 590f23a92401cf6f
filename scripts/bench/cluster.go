//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/redis/go-redis/v9"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
	busOffset    = 10000 // distance from a node's port to its cluster bus port
)

// withCluster calls do while Redis is a cluster of three nodes. They run the redis-server of the site, each on its
// own port, because a cluster supports no unix sockets.
func (b *bench) withCluster(ctx context.Context, do func() error) (err error) {
	info, err := b.site.Redis.Client().Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(infoField(info, "process_id"))
	if err != nil {
		return fmt.Errorf("process_id in INFO of Redis: %w", err)
	}
	t, err := twinOf(pid)
	if err != nil {
		return err
	}
	// /proc resolves the link that redis-server may be, but the program depends on its name.
	t.path = infoField(info, "executable")
	var addresses []string
	before := b.redis
	b.redis.nodes = nil
	defer func() {
		for _, node := range b.redis.nodes {
			err = errors.Join(err, node.Close())
		}
		b.redis = before
	}()
	dir, err := os.MkdirTemp(b.data, "cluster-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for i := range clusterNodes {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		p, err := b.startNode(t, filepath.Join(dir, strconv.Itoa(i)), port)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop(ctx, p, syscall.SIGTERM)) }()
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		node := redis.NewClient(&redis.Options{Addr: addresses[i], ContextTimeoutEnabled: true})
		b.redis.nodes = append(b.redis.nodes, node)
		err = p.Await(wait, pollRows, "its answer", func() (bool, error) { return true, node.Ping(wait).Err() })
		if err != nil {
			return err
		}
	}
	b.redis.url = "redis-cluster://" + strings.Join(addresses, ",")
	if err := joinCluster(wait, b.redis.nodes, addresses); err != nil {
		return err
	}
	return do()
}

// startNode starts one node with the settings of the embedded server, plus those of the cluster.
func (b *bench) startNode(t twin, dir string, port int) (*trial.Process, error) {
	if err := t.folder(dir); err != nil {
		return nil, err
	}
	return b.start(t, filepath.Base(t.path), "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--cluster-enabled", "yes", "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction", "--logfile", "")
}

// joinCluster does what redis-cli --cluster create does: it assigns each node its slots, and lets the first node meet
// the others.
func joinCluster(ctx context.Context, nodes []*redis.Client, addresses []string) error {
	for i, node := range nodes {
		first, last := slotsOf(i, len(nodes))
		if err := node.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return fmt.Errorf("give a node its slots: %w", err)
		}
	}
	for _, address := range addresses[1:] {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		if err := nodes[0].ClusterMeet(ctx, host, port).Err(); err != nil {
			return fmt.Errorf("let the nodes meet: %w", err)
		}
	}
	for _, node := range nodes {
		err := trial.Until(ctx, pollRows, "the cluster to form", func() (bool, error) {
			info, err := node.ClusterInfo(ctx).Result()
			return infoField(info, "cluster_state") == "ok" && infoField(info, "cluster_known_nodes") == strconv.Itoa(len(nodes)), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// slotsOf returns the first and last slot of node i.
func slotsOf(i, nodes int) (first, last int) {
	return clusterSlots * i / nodes, clusterSlots*(i+1)/nodes - 1
}

// freePort finds a port that is free together with the node's bus port.
func freePort(ctx context.Context) (int, error) {
	var last error
	for range 50 {
		port := 20000 + rand.IntN(10000)
		if last = errors.Join(checkFree(ctx, port), checkFree(ctx, port+busOffset)); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find two free ports for a node: %w", last)
}

func checkFree(ctx context.Context, port int) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return ln.Close()
}
