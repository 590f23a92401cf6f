// Package config parses Herald's environment variables into one struct, and documents them.
//
// One table lists every variable with its name, default and help text. `worker config`, docs/reference/settings.md and
// Load all use this table. Every secret can also be set by NAME_FILE, the path of a file that contains it. This package
// opens no connections.
package config
