package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
)

// Programs are the servers that embedded services would run. Of each, either it or the error is set.
type Programs struct {
	Postgres, Redis     string // as "15.18 in /usr/lib/postgresql/15/bin"
	NoPostgres, NoRedis error
}

// FindPrograms looks for them as a start would, for the data in dir. Nothing is fetched, made or started. NoPostgres is
// a *NoBinariesError when a start would try to fetch one, a *VersionError or *AccountError when something has to be
// changed; NoRedis is ErrNoRedis when a start would do without.
func FindPrograms(ctx context.Context, dir, cache string) (p Programs) {
	log := slog.New(slog.DiscardHandler)
	p.Postgres, p.NoPostgres = lookForPostgres(ctx, dir, cache, log)
	acct, err := redisAccount(filepath.Join(dir, "redis", "data"))
	if err != nil {
		p.NoRedis = err
		return p
	}
	binary, passed, err := findRedis(ctx, cache, acct, log)
	switch {
	case errors.Is(err, ErrNoRedis):
		p.NoRedis = explainNoRedis(passed)
	case err != nil:
		p.NoRedis = err
	default:
		p.Redis = fmt.Sprintf("%s %s, %s", binary.name, binary.version, binary.path)
	}
	return p
}

func lookForPostgres(ctx context.Context, dir, cache string, log *slog.Logger) (string, error) {
	data := filepath.Join(dir, "postgres", "data")
	major, owner, err := clusterOf(data)
	if err != nil {
		return "", err
	}
	acct, err := pickAccount(owner)
	if err != nil {
		return "", err
	}
	found, err := choosePostgres(ctx, PostgresConfig{CacheDir: cache}, data, major, acct, log)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Postgres %s, %s", found.version, found.dir), nil
}
