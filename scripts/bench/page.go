//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// target is one line of the table of targets.
type target struct {
	what, needed, measured string
	verdict                string // met, not met, not measured
}

const (
	met         = "met"
	notMet      = "**not met**"
	notMeasured = "not measured here"
)

// judge returns the line of a target. If it was not measured, measured and ok do not count.
func judge(what, needed string, isMeasured bool, measured string, ok bool) target {
	switch {
	case !isMeasured:
		return target{what, needed, "", notMeasured}
	case ok:
		return target{what, needed, measured, met}
	}
	return target{what, needed, measured, notMet}
}

func writeTargets(p func(string, ...any), targets []target) {
	p("## Targets\n")
	p("| what | target | measured | |\n| --- | --- | --- | --- |")
	for _, t := range targets {
		p("| %s | %s | %s | %s |", t.what, t.needed, t.measured, t.verdict)
	}
	p("")
}

// kept is the line below which the file is written by hand.
const kept = "<!-- The rest of this page is written by hand. bench keeps it. -->"

// write writes the report into the file, and keeps the handwritten part below it.
func write(path, text string) error {
	if path == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, byHand, _ := strings.Cut(string(old), kept+"\n")
	return os.WriteFile(path, []byte(text+"\n"+kept+"\n"+byHand), 0o644)
}

// perS formats a rate with commas.
func perS(rate float64) string { return thousands(int(rate+.5)) + "/s" }

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

func mb(bytes float64) float64 { return bytes / 1e6 }
