package trial

import (
	"net"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// TestRedisCluster: a worker delivers with a redis-cluster:// URL. A cluster refuses commands with keys of different
// slots, even if it has only one node.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	cli, env, err := FindRedisCLI()
	if err != nil {
		t.Skip(err)
	}
	server, err := exec.LookPath(filepath.Join(filepath.Dir(cli), "redis-server"))
	if err != nil {
		t.Skip(err)
	}
	address := heraldtest.Address(t)
	_, port, err := net.SplitHostPort(address)
	heraldtest.Must(t, err)
	_, busPort, err := net.SplitHostPort(heraldtest.Address(t))
	heraldtest.Must(t, err)
	dir := t.TempDir()
	node, err := Program{Name: "node", Path: server, Env: env, Log: filepath.Join(dir, "log"),
		Args: []string{"--bind", "127.0.0.1", "--port", port, "--cluster-enabled", "yes", "--cluster-port", busPort,
			"--dir", dir, "--save", ""}}.Start()
	heraldtest.Must(t, err)
	t.Cleanup(func() { heraldtest.Must(t, node.End()) })
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = client.Close() })
	heraldtest.Must(t, node.Await(t.Context(), pollQuick, "the node to take its slots", func() (bool, error) {
		return true, client.ClusterAddSlotsRange(t.Context(), 0, 1<<14-1).Err()
	}))
	w := &outageWorld{oneWorker: startOneWorker(t, "cluster", outageTime, 4, 16, "REDIS_URL=redis-cluster://"+address)}
	w.flow()
	w.must(w.worker.Terminate(w.ctx))
	refused := client.InfoMap(w.ctx, "errorstats").Item("Errorstats", "errorstat_CROSSSLOT")
	heraldtest.Equal(t, "refused commands", refused, "")
	if keys, err := client.DBSize(w.ctx).Result(); err != nil || keys == 0 {
		t.Errorf("the cluster holds %d keys (%v): Herald uses another Redis", keys, err)
	}
}
