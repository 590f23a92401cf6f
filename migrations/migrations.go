// Package migrations holds the SQL that shapes the schema herald, embedded in the binary.
//
// Files are applied in the order of their numbers by goose and never edited once released: a change is a new file.
// Everything runs on Postgres 15 to 18, so identifiers come from the program or gen_random_uuid(), never uuidv7().
package migrations

import "embed"

// FS holds NNNN_name.sql, each with "-- +goose Up" and "-- +goose Down".
//
//go:embed *.sql
var FS embed.FS
