package queue

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/rights.lua
var rightsSource string

// checkRights returns an *UnfitError if Redis refuses a command that Herald or asynq uses, because the user may not run
// it or may not use the keys, or because the server has no such command.
func (q *Queue) checkRights(ctx context.Context) error {
	script := redis.NewScript(rightsSource)
	for _, prefix := range []string{"asynq:", "herald:"} {
		keys := make([]string, 5)
		for i := range keys {
			keys[i] = fmt.Sprintf("%s{rights}:%d", prefix, i)
		}
		answer, err := script.Eval(ctx, q.rdb, keys).StringSlice()
		name := "eval"
		if err == nil || errors.Is(err, redis.Nil) {
			name = "evalsha"
			if err = script.EvalSha(ctx, q.rdb, keys).Err(); errors.Is(err, redis.Nil) {
				err = nil
			}
		}
		if len(answer) == 2 {
			name, err = strings.ToLower(answer[0]), errors.New(answer[1])
		}
		if refusal := findRefusal(name, err); refusal != nil {
			return refusal
		}
		if err != nil {
			return fmt.Errorf("check the rights in Redis: %s: %w", name, err)
		}
	}
	return nil
}

// findRefusal returns an *UnfitError if err means that Redis will always refuse the command of this name: NOPERM, an
// unknown or renamed command, or for a command of a script the texts of Redis 6.2 and Valkey 9.
func findRefusal(name string, err error) error {
	if err == nil {
		return nil
	}
	answer, _, _ := strings.Cut(err.Error(), ", with args") // of an unknown command: here, the script
	for _, text := range []string{"NOPERM", "unknown command", "Unknown Redis command", "can't run this command",
		"ACL failure in script", "Unknown command"} {
		if strings.Contains(answer, text) {
			return &UnfitError{fmt.Sprintf("Redis refuses the command %s to Herald (%s): "+
				"give its user the rights of docs/reference/queues.md, and rename no command", name, answer)}
		}
	}
	return nil
}
