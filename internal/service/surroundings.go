package service

import (
	"fmt"
	"log/slog"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// What the metrics say of what the worker stands on.
var (
	serviceUp = newGauge("herald_service_up", "1: this worker reaches Postgres, or Redis; 0: it waits for it, and "+
		"deliveries with it.", "service")
	dataFree = newGauge("herald_data_free_bytes", "Bytes that the worker may still write on the disk of HERALD_DATA, where "+
		"embedded services keep their data. Missing without any.")
	dataSize = newGauge("herald_data_size_bytes", "The size of that disk.")
)

// surroundings tells what the worker stands on. A scrape asks neither Postgres nor Redis: it reads what the probes of
// /readyz found last.
type surroundings struct {
	ready   *readiness
	dataDir string // "": nothing is kept on this machine
	log     *slog.Logger
}

// Describe implements prometheus.Collector.
func (s *surroundings) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{serviceUp, dataFree, dataSize} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *surroundings) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	waiting, _ := s.ready.readState()
	for _, name := range []string{postgresName, redisName} {
		up := 1.0
		if waiting[name] != "" {
			up = 0
		}
		send(serviceUp, up, name)
	}
	if s.dataDir == "" {
		return
	}
	free, size, err := readDisk(s.dataDir)
	if err != nil {
		s.log.Warn("metrics: the disk of HERALD_DATA could not be read", "error", err)
		return
	}
	send(dataFree, free)
	send(dataSize, size)
}

// readDisk tells how much of the disk that path is on ordinary users may still write, and its size, in bytes.
func readDisk(path string) (free, size float64, err error) {
	var st syscall.Statfs_t
	if err = syscall.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	block := float64(st.Bsize)
	return float64(st.Bavail) * block, float64(st.Blocks) * block, nil
}
