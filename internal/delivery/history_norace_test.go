//go:build !race

package delivery

const raceDetector = false
