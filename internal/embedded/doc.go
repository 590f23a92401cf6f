// Package embedded gives one machine a Postgres and a Redis without anything being installed or configured.
//
// Postgres is a private cluster made with binaries found on the machine or fetched into a cache folder; it runs as a
// child process, reachable only through a unix socket in a folder that nobody else may enter. Redis is a redis-server
// or valkey-server found in the same places, or else miniredis inside this process, which keeps nothing over a restart.
// Data lies below one folder:
//
//	DIR/herald.lock                     who uses the folder (LockDir)
//	DIR/run.json                        addresses of the running worker (WriteRunFile)
//	DIR/postgres/{lock,data,run}        cluster and its socket
//	DIR/redis/{lock,data,run}           append-only file and socket of a real Redis
//
// What holds everywhere:
//   - A server lives no longer than the process that started it. On Linux the kernel sees to that (Pdeathsig);
//     elsewhere the next start stops what was left.
//   - A server has its own process group, so that a terminal's Ctrl-C reaches only this process, which stops its
//     servers last.
//   - Two processes never use one folder: each part holds a lock (flock) that dies with its holder.
//   - As root the servers run as another user, and a signal is only sent to a process that was checked to be the
//     server.
//   - Servers get an environment of a few fixed variables, never this process's own, which may hold secrets.
//
// Schema, migrations, queues and configuration are not here. The package runs on Linux, macOS and the BSDs.
package embedded
