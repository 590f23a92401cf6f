package records

import (
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Worker is the record of a running worker: its host and its encryption keys. The commands that rotate keys read the
// records, so that they remove no key that a worker still needs.
type Worker struct {
	ID        uuid.UUID // drawn by the worker's process
	Host      string
	Keys      []uint32 // ids of the keys with which the worker can decrypt
	SealsWith uint32   // id of the key of Keys with which the worker encrypts
}

// HasKey reports whether the worker can decrypt with the key that has this id.
func (w Worker) HasKey(id uint32) bool { return slices.Contains(w.Keys, id) }

const (
	// WorkerReports is the interval at which a worker writes its record.
	WorkerReports = 15 * time.Second
	// workerForgotten is the age at which a record is deleted.
	workerForgotten = 24 * time.Hour
)

// ReportWorker stores the record of a running worker, and deletes records older than workerForgotten.
func (s *Store) ReportWorker(ctx context.Context, w Worker) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "store the record of this worker")
	defer end()
	keys := make([]int64, len(w.Keys))
	for i, id := range w.Keys {
		keys[i] = int64(id)
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO herald.workers (id, host, key_ids, seals_with) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO UPDATE SET host = excluded.host, key_ids = excluded.key_ids,
		                               seals_with = excluded.seals_with, seen_at = now()`,
		w.ID, storable.Text(w.Host, storable.MaxName), keys, int64(w.SealsWith))
	b.Queue(`DELETE FROM herald.workers WHERE seen_at < now() - make_interval(secs => $1)`, workerForgotten.Seconds())
	return s.db.Conns.SendBatch(ctx, b).Close()
}

// RemoveWorker deletes the record of a worker that stops.
func (s *Store) RemoveWorker(ctx context.Context, id uuid.UUID) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "delete the record of this worker")
	defer end()
	_, err = s.db.Conns.Exec(ctx, `DELETE FROM herald.workers WHERE id = $1`, id)
	return err
}

// Workers lists the workers that wrote their record within WorkerGone.
func (s *Store) Workers(ctx context.Context) (list []Worker, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list the running workers")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT id, host, key_ids, seals_with FROM herald.workers
		WHERE seen_at > now() - make_interval(secs => $1) ORDER BY host, id`, ledger.WorkerGone.Seconds())
	var keys []int64
	var seals int64
	var w Worker
	_, err = pgx.ForEachRow(rows, []any{&w.ID, &w.Host, &keys, &seals}, func() error {
		w.Keys, w.SealsWith = make([]uint32, len(keys)), uint32(seals)
		for i, id := range keys {
			w.Keys[i] = uint32(id)
		}
		list = append(list, w)
		return nil
	})
	return list, err
}
