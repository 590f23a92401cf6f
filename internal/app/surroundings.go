package app

import (
	"fmt"
	"log/slog"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the services and the disk that the worker depends on.
var (
	serviceUp = newGauge("herald_service_up", "1: this worker reaches the service (Postgres or Redis), and the "+
		"service takes writes; 0: the worker and its deliveries wait for the service.", "service")
	dataFree = newGauge("herald_data_free_bytes", "Bytes that the worker may still write on the disk of HERALD_DATA, "+
		"where embedded services keep their data. Missing without any.")
	dataSize = newGauge("herald_data_size_bytes", "The size of that disk.")
)

// surroundings collects those metrics. A scrape makes no request to Postgres or Redis: it returns the state of the last
// probes for /readyz.
type surroundings struct {
	ready   *readiness
	dataDir string // empty if no data is stored on this machine
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

// readDisk returns the bytes that ordinary users can still write on the disk of path, and the size of the disk in
// bytes.
func readDisk(path string) (free, size float64, err error) {
	var st syscall.Statfs_t
	if err = syscall.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	block := float64(st.Bsize)
	return float64(st.Bavail) * block, float64(st.Blocks) * block, nil
}
