package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
)

// keysetFile is the name of the keyset in the data folder of an embedded database.
const keysetFile = "keyset"

// Master returns the key that wraps the keyset (HERALD_MASTER_KEY), or nil if it is not set.
func Master(cfg *config.Config) (secret.Master, error) {
	if cfg.MasterKey.IsZero() {
		return nil, nil
	}
	m, err := secret.MasterKey(cfg.MasterKey)
	if err != nil {
		return nil, fmt.Errorf("HERALD_MASTER_KEY: %w", err)
	}
	return m, nil
}

// Keyset returns the keyset in force on this machine: HERALD_KEYSET, else the one in the data folder of the embedded
// database. It does not create one.
func Keyset(cfg *config.Config) (*secret.Keyset, error) {
	if !cfg.Keyset.IsZero() {
		return configuredKeyset(cfg)
	}
	dir := DataDir(cfg)
	if dir == "" || !cfg.DatabaseURL.IsZero() {
		return nil, errors.New("there is no keyset: set HERALD_KEYSET or HERALD_KEYSET_FILE")
	}
	m, err := Master(cfg)
	if err != nil {
		return nil, err
	}
	k, err := secret.LoadFile(filepath.Join(dir, keysetFile), m)
	if err != nil {
		return nil, fmt.Errorf("there is no keyset to work on (set HERALD_KEYSET, or HERALD_DATA to the worker's "+
			"data folder): %w", err)
	}
	return k, nil
}

func configuredKeyset(cfg *config.Config) (*secret.Keyset, error) {
	m, err := Master(cfg)
	if err != nil {
		return nil, err
	}
	k, err := secret.Unwrap(cfg.Keyset, m)
	if err != nil {
		return nil, fmt.Errorf("HERALD_KEYSET: %w", err)
	}
	return k, nil
}

// Keyset returns the configured keyset. With an embedded database it returns the one in the data folder, and creates it
// on the first call.
func (b *Backend) Keyset(cfg *config.Config, log *slog.Logger) (*secret.Keyset, error) {
	if !cfg.Keyset.IsZero() {
		return configuredKeyset(cfg)
	}
	if b.DataDir == "" {
		if !b.EmbeddedDatabase {
			return nil, errors.New("HERALD_KEYSET is not set although DATABASE_URL is: make a keyset with " +
				"`worker keys init`")
		}
		return secret.Create() // as ephemeral as the data that it encrypts
	}
	m, err := Master(cfg)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.DataDir, keysetFile)
	k, made, err := secret.LoadOrCreateFile(path, m)
	if err != nil {
		return nil, err
	}
	if made {
		log.Info("made a keyset for secrets at rest", "file", path)
	}
	return k, nil
}
