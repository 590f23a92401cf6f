package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// snapshot is the content of a miniredis at one moment. On disk it is JSON Lines: a header, then one line per key, with
// names and values in base64 because they are bytes. The header counts the keys, so that a cut file is recognised.
type snapshot struct {
	taken   time.Time
	entries []entry
}

type header struct {
	Format string    `json:"format"`
	Taken  time.Time `json:"taken"`
	Keys   int       `json:"keys"`
}

const snapshotFormat = "herald-miniredis-1"

// entry is one key. Values are: string: the value; list: the elements; set: the members; zset: member, score, …;
// hash: field, value, ….
type entry struct {
	Key    []byte   `json:"k"`
	Type   string   `json:"t"`
	TTL    int64    `json:"ttl"` // ms that were left; below 0: lives for ever
	Values [][]byte `json:"v"`
}

// readAll is one script, and scripts are atomic in miniredis as in Redis. Streams are not read: asynq has none.
const readAll = `
local out = {}
for _, k in ipairs(redis.call("KEYS", "*")) do
  local t = redis.call("TYPE", k)
  if type(t) == "table" then t = t.ok end
  local v
  if t == "string" then v = {redis.call("GET", k)}
  elseif t == "list" then v = redis.call("LRANGE", k, 0, -1)
  elseif t == "set" then v = redis.call("SMEMBERS", k)
  elseif t == "zset" then v = redis.call("ZRANGE", k, 0, -1, "WITHSCORES")
  elseif t == "hash" then v = redis.call("HGETALL", k)
  end
  if v then table.insert(out, {k, t, tostring(redis.call("PTTL", k)), v}) end
end
return out`

// takeSnapshot reads everything at once.
func takeSnapshot(ctx context.Context, client *redis.Client, now time.Time) (snapshot, error) {
	rows, err := client.Eval(ctx, readAll, nil).Slice()
	if err != nil {
		return snapshot{}, fmt.Errorf("read all keys: %w", err)
	}
	s := snapshot{taken: now, entries: make([]entry, 0, len(rows))}
	for _, row := range rows {
		e, err := readRow(row)
		if err != nil {
			return snapshot{}, err
		}
		s.entries = append(s.entries, e)
	}
	return s, nil
}

func readRow(row any) (entry, error) {
	bad := func() (entry, error) { return entry{}, fmt.Errorf("read all keys: a row is %T", row) }
	cols, ok := row.([]any)
	if !ok || len(cols) != 4 {
		return bad()
	}
	key, ok1 := cols[0].(string)
	kind, ok2 := cols[1].(string)
	left, ok3 := cols[2].(string)
	values, ok4 := cols[3].([]any)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return bad()
	}
	ttl, err := strconv.ParseInt(left, 10, 64)
	if err != nil {
		return bad()
	}
	e := entry{Key: []byte(key), Type: kind, TTL: ttl, Values: make([][]byte, len(values))}
	for i, v := range values {
		text, ok := v.(string)
		if !ok {
			return bad()
		}
		e.Values[i] = []byte(text)
	}
	return e, nil
}

func (s snapshot) write(w io.Writer) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(buffered)
	if err := enc.Encode(header{Format: snapshotFormat, Taken: s.taken.UTC(), Keys: len(s.entries)}); err != nil {
		return err
	}
	for _, e := range s.entries {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// readSnapshot reads what write wrote and refuses anything else.
func readSnapshot(r io.Reader) (snapshot, error) {
	dec := json.NewDecoder(bufio.NewReaderSize(r, 64<<10))
	var h header
	if err := dec.Decode(&h); err != nil {
		return snapshot{}, fmt.Errorf("snapshot header: %w", err)
	}
	if h.Format != snapshotFormat || h.Keys < 0 {
		return snapshot{}, fmt.Errorf("snapshot has format %q, not %q", h.Format, snapshotFormat)
	}
	s := snapshot{taken: h.Taken}
	for {
		var e entry
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return snapshot{}, fmt.Errorf("snapshot key %d of %d: %w", len(s.entries)+1, h.Keys, err)
		}
		if err := e.check(); err != nil {
			return snapshot{}, fmt.Errorf("snapshot key %d of %d: %w", len(s.entries)+1, h.Keys, err)
		}
		s.entries = append(s.entries, e)
	}
	if len(s.entries) != h.Keys {
		return snapshot{}, fmt.Errorf("snapshot has %d keys and should have %d", len(s.entries), h.Keys)
	}
	return s, nil
}

func (e entry) check() error {
	switch e.Type {
	case "string":
		if len(e.Values) == 1 {
			return nil
		}
	case "list", "set":
		if len(e.Values) > 0 {
			return nil
		}
	case "zset", "hash":
		if len(e.Values) == 0 || len(e.Values)%2 != 0 {
			break
		}
		for i := 1; e.Type == "zset" && i < len(e.Values); i += 2 {
			if _, err := strconv.ParseFloat(string(e.Values[i]), 64); err != nil {
				return fmt.Errorf("score %q is no number", e.Values[i])
			}
		}
		return nil
	default:
		return fmt.Errorf("type %q is not known", e.Type)
	}
	return fmt.Errorf("a %s with %d values", e.Type, len(e.Values))
}

// loadChunk bounds the arguments of one command and the commands of one round trip.
const loadChunk = 1000

// load puts everything into an empty server. Keys that would have died since the snapshot are left out.
func (s snapshot) load(ctx context.Context, client *redis.Client, now time.Time) error {
	passed := max(now.Sub(s.taken), 0).Milliseconds()
	pipe := client.Pipeline()
	flush := func(at int) error {
		if pipe.Len() < at {
			return nil
		}
		_, err := pipe.Exec(ctx)
		return err
	}
	for _, e := range s.entries {
		if e.TTL >= 0 && e.TTL <= passed {
			continue
		}
		name := map[string]string{"string": "SET", "list": "RPUSH", "set": "SADD", "zset": "ZADD", "hash": "HSET"}[e.Type]
		values := e.Values
		if e.Type == "zset" {
			values = swapped(values) // ZADD wants the score first
		}
		for len(values) > 0 {
			part := values[:min(loadChunk, len(values))]
			values = values[len(part):]
			args := []any{name, e.Key}
			for _, v := range part {
				args = append(args, v)
			}
			pipe.Do(ctx, args...)
			if err := flush(loadChunk); err != nil {
				return err
			}
		}
		if e.TTL >= 0 {
			pipe.Do(ctx, "PEXPIRE", e.Key, e.TTL-passed)
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	return flush(0)
}

func swapped(pairs [][]byte) [][]byte {
	out := make([][]byte, len(pairs))
	for i := 0; i+1 < len(pairs); i += 2 {
		out[i], out[i+1] = pairs[i+1], pairs[i]
	}
	return out
}
