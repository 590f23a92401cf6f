// Package config reads Herald's environment variables into one struct (DESIGN §10) and can say what they are.
//
// One table names every variable with its default, unit and consequence; `worker config`, docs/settings.md and the
// reading itself come from it. Every secret may also be given as a file, NAME_FILE. Nothing here connects to anything.
package config
