// Package migrations embeds the SQL files that create and change the schema herald.
//
// goose applies the files in the order of their numbers. The statements of a released file are never edited: a change
// is a new file, and workers of the previous release must continue to work with it. No file undoes its changes.
// Everything runs on Postgres 15 to 18, so ids come from the program or from gen_random_uuid(), never from uuidv7().
package migrations

import "embed"

// FS holds the files NNNN_name.sql, each with "-- +goose Up".
//
//go:embed *.sql
var FS embed.FS
