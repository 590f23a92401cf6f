// Package embedded runs a Postgres and a Redis on this machine without installation or configuration.
//
// Postgres is a private cluster. Its binaries are found on the machine or fetched into a cache folder. It runs as a
// child process and is reachable only through a unix socket in a folder that other users cannot enter. Redis is a
// redis-server or valkey-server that is found in the same places, else miniredis inside this process, which loses its
// data at a restart. All data is in one folder:
//
//	DIR/herald.lock                     locked by the process that uses the folder (LockDir)
//	DIR/run.json                        addresses of the running worker (WriteRunFile)
//	DIR/postgres/{lock,data,run}        cluster and its socket
//	DIR/redis/{lock,data,run}           append-only file and socket of a real Redis
//	DIR/{postgres,redis}/server.pid     process id of the running server
//
// Invariants:
//   - A server ends with the process that started it. On Linux the kernel ends it (Pdeathsig); on other systems the
//     next start does (endLeftover).
//   - A server has its own process group, so that a terminal's Ctrl-C reaches only this process, which stops its
//     servers last.
//   - Two processes never use one folder: each part holds a lock (flock) that the kernel releases when its holder dies.
//     A server inherits the lock of its part, so that the lock is held until the server of a killed process has ended.
//   - For root the servers run as another user. A signal is sent only to a process that was verified to be the server.
//   - The environment of a server has a few fixed variables. It never contains this process's own, which may be secret.
//
// Schema, migrations, queues and settings belong to other packages. The package runs on Linux, macOS and the BSDs.
package embedded
