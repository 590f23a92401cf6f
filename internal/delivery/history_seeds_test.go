package delivery

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// findSeeds makes TestFindSeeds write a new list of seeds, which is necessary after a change of the histories' model:
//
//	go test ./internal/delivery -run TestFindSeeds -timeout 30m -find-seeds
var findSeeds = flag.Bool("find-seeds", false, "write testdata/histories.txt anew")

const (
	// seedCover is the number of listed histories in which each thing must happen, because a seed does not produce
	// exactly the same history on each machine.
	seedCover = 3
	// mostSearched bounds the seeds that are searched. searchedAtOnce is the number of seeds between two checks.
	mostSearched   = 1000
	searchedAtOnce = 50
)

// noFault is the name in the list for histories without a planted fault.
const noFault = "no fault"

var seedsFile = filepath.Join("testdata", "histories.txt")

// readSeeds reads the list of seeds, which has a line for each planted fault and one for none.
func readSeeds(t *testing.T) map[fault][]uint64 {
	t.Helper()
	text, err := os.ReadFile(seedsFile)
	heraldtest.Must(t, err)
	seeds := map[fault][]uint64{}
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		name, numbers, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue // a comment
		}
		planted := fault(name)
		if name == noFault {
			planted = none
		}
		for _, word := range strings.Fields(numbers) {
			n, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", seedsFile, err)
			}
			seeds[planted] = append(seeds[planted], n)
		}
	}
	return seeds
}

// seedsFrom returns n consecutive seeds.
func seedsFrom(first uint64, n int) (seeds []uint64) {
	for i := range n {
		seeds = append(seeds, first+uint64(i))
	}
	return seeds
}

// freshSeeds returns n seeds that were not used on earlier days. HERALD_HISTORY_FIRST or the date determines them.
func freshSeeds(t *testing.T, n int) []uint64 {
	first := readNumber(t, "HERALD_HISTORY_FIRST", uint64(time.Now().Unix()/86_400)*1_000_000)
	t.Logf("seeds %d to %d: HERALD_HISTORY_FIRST=%d repeats them", first, first+uint64(n)-1, first)
	return seedsFrom(first, n)
}

// TestFindSeeds writes the list of seeds with -find-seeds. Otherwise it checks that the list has a line for each fault.
func TestFindSeeds(t *testing.T) {
	if !*findSeeds {
		known := readSeeds(t)
		for _, planted := range append([]fault{none}, faults...) {
			if len(known[planted]) == 0 {
				t.Errorf("%s has no seed for the fault %q", seedsFile, planted)
			}
		}
		return
	}
	var out strings.Builder
	out.WriteString("Seeds of histories that together meet everything in mustHappen, and seeds that show each planted fault.\n" +
		"Written by go test ./internal/delivery -run TestFindSeeds -timeout 30m -find-seeds\n")
	fmt.Fprintf(&out, "%s:%s\n", noFault, formatSeeds(coverSeeds(t)))
	for _, planted := range faults {
		l := newLab()
		var shown []uint64
		for seed := uint64(1); seed <= mostSearched && len(shown) < seedCover; seed++ {
			if h := l.one(t, seed, planted); len(h.broken) > 0 {
				shown = append(shown, seed)
			}
		}
		fmt.Fprintf(&out, "%s:%s\n", planted, formatSeeds(shown))
	}
	heraldtest.Must(t, os.MkdirAll(filepath.Dir(seedsFile), 0o755))
	heraldtest.Must(t, os.WriteFile(seedsFile, []byte(out.String()), 0o644))
}

// coverSeeds returns few of the first mostSearched seeds, in whose histories each thing that must happen does so
// seedCover times. It repeatedly adds the seed that contributes most.
func coverSeeds(t *testing.T) (chosen []uint64) {
	var mu sync.Mutex
	happens := map[uint64][]string{}
	t.Run("search", func(t *testing.T) {
		for part := range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				l := newLab()
				for seed := uint64(1 + part); seed <= mostSearched; seed += uint64(runtime.GOMAXPROCS(0)) {
					h := l.one(t, seed, none)
					met := slices.DeleteFunc(slices.Clone(mustHappen), func(what string) bool { return h.counts[what] == 0 })
					mu.Lock()
					happens[seed] = met
					mu.Unlock()
				}
			})
		}
	})
	wanted := map[string]int{}
	for _, what := range mustHappen {
		wanted[what] = seedCover
	}
	for len(wanted) > 0 {
		best, most := uint64(0), 0
		for seed := uint64(1); seed <= mostSearched; seed++ {
			n := 0
			for _, what := range happens[seed] {
				n += min(wanted[what], 1)
			}
			if n > most {
				best, most = seed, n
			}
		}
		if most == 0 {
			t.Logf("in too few histories: %v", wanted)
			break
		}
		for _, what := range happens[best] {
			if wanted[what]--; wanted[what] <= 0 {
				delete(wanted, what)
			}
		}
		delete(happens, best)
		chosen = append(chosen, best)
	}
	slices.Sort(chosen)
	return chosen
}

func formatSeeds(seeds []uint64) (text string) {
	for _, seed := range seeds {
		text += fmt.Sprint(" ", seed)
	}
	return text
}
