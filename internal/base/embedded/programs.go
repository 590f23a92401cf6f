package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// Programs describes the programs that embedded services would run. For each service either the text or the error is
// set.
type Programs struct {
	Postgres, Redis     string // as in "Postgres 15.18, /usr/lib/postgresql/15/bin"
	NoPostgres, NoRedis error
}

// FindPrograms searches for the programs as a start with the data in dir would. It fetches, creates and starts nothing.
// NoPostgres is a *NoBinariesError if a start would try to fetch Postgres, and a *VersionError, an *AccountError or an
// *UnreachableError if the operator must change something. NoRedis is ErrNoRedis if a start would use miniredis.
func FindPrograms(ctx context.Context, dir, cache string) (p Programs) {
	log := slog.New(slog.DiscardHandler)
	p.Postgres, p.NoPostgres = lookForPostgres(ctx, dir, cache, log)
	acct, err := redisAccount(filepath.Join(dir, "redis", "data"))
	if err != nil {
		p.NoRedis = err
		return p
	}
	found, err := findRedis(ctx, cache, acct, log)
	if err != nil {
		p.NoRedis = err
		return p
	}
	p.Redis = fmt.Sprintf("%s %s, %s", found.server, found.version, found.programPath())
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
	if err := checkReachable(acct, dir); err != nil {
		return "", err
	}
	found, err := choosePostgres(ctx, Config{CacheDir: cache, Logger: log}, data, major, acct)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Postgres %s, %s", found.version, found.dir), nil
}

// checkReachable returns an error if the account cannot pass through the data folder. If the folder does not exist, it
// checks the nearest parent that exists.
func checkReachable(acct account, dir string) error {
	at, err := filepath.Abs(dir)
	for ; err == nil && at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	return acct.inPrivateGroup().checkPassage(at)
}
