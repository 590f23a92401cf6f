package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dpkgStatus is the system's list of installed packages.
const dpkgStatus = "/var/lib/dpkg/status"

// apt holds the paths of apt-get and dpkg-deb.
type apt struct{ get, deb string }

func findApt() (apt, error) {
	get, err1 := exec.LookPath("apt-get")
	deb, err2 := exec.LookPath("dpkg-deb")
	_, err3 := os.Stat(dpkgStatus)
	if errors.Join(err1, err2, err3) != nil {
		return apt{}, errors.New("this system has no apt-get")
	}
	return apt{get: get, deb: deb}, nil
}

// debPackage is one package in apt's plan.
type debPackage struct{ name, version string }

var planLine = regexp.MustCompile(`^Inst (\S+) (?:\[[^\]]*\] )?\((\S+) `)

// readPlan parses the lines "Inst NAME [OLD] (VERSION REPOSITORY [ARCH])" of apt-get -s install.
func readPlan(out string) []debPackage {
	var plan []debPackage
	for line := range strings.Lines(out) {
		if m := planLine.FindStringSubmatch(line); m != nil {
			plan = append(plan, debPackage{name: m[1], version: m[2]})
		}
	}
	return plan
}

var (
	serverPackage = regexp.MustCompile(`^(postgresql-([0-9]+)|(redis|valkey)-server)$`)
	// redis-server is a link into redis-tools
	clientPackage = regexp.MustCompile(`^(postgresql-client-[0-9]+|(redis|valkey)-tools)$`)
	// These are not needed to run a server: headers, Perl for Debian's cluster scripts, and LLVM, which is larger than
	// all other packages together.
	needlessLibrary = regexp.MustCompile(`(-dev|-perl)$|^lib(llvm|perl|z3)`)
	// These must not be mixed with the system's own: the loader belongs to the C library.
	coreLibrary = regexp.MustCompile(`^(libc6|libc-bin|libgcc-s1|libstdc\+\+6)(:.*)?$`)
)

// choosePackages selects the packages that a server needs to run, and returns the server's own package too.
func choosePackages(plan []debPackage) (chosen []debPackage, server debPackage, err error) {
	for _, p := range plan {
		switch m := serverPackage.FindStringSubmatch(p.name); {
		case m != nil:
			if major, err := strconv.Atoi(m[2]); err == nil && major < oldestPostgres {
				return nil, p, fmt.Errorf("the packages of this system have Postgres %d, older than %d", major,
					oldestPostgres)
			}
			server = p
			chosen = append(chosen, p)
		case coreLibrary.MatchString(p.name):
			return nil, p, fmt.Errorf("the packages need a newer %s than this system has", p.name)
		case clientPackage.MatchString(p.name),
			strings.HasPrefix(p.name, "lib") && !needlessLibrary.MatchString(p.name):
			chosen = append(chosen, p)
		}
	}
	if server.name == "" {
		return nil, server, errors.New("the package lists have no server package")
	}
	return chosen, server, nil
}

// bundleName returns a name that is equal for equal packages: "postgresql-15_15.20-0+deb12u1_1a2b3c4d".
func bundleName(server debPackage, chosen []debPackage) string {
	var all []string
	for _, p := range chosen {
		all = append(all, p.name+"="+p.version)
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.~", r) {
			return r
		}
		return '_'
	}, server.name+"_"+server.version)
	return clean + "_" + hex.EncodeToString(sum[:4])
}

// fetchPackages downloads a package with the libraries that the system lacks, and unpacks them as one bundle. It first
// uses the system's package lists. If they are empty, or so old that their packages no longer exist, it reads lists of
// its own.
func (f *fetcher) fetchPackages(ctx context.Context, what, want string) error {
	a, err := findApt()
	if err != nil {
		return err
	}
	stage, err := f.makeStaging()
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	base, err := aptOptions(stage, want)
	if err != nil {
		return err
	}
	err = f.unpackPackages(ctx, a, base, stage, what, want)
	if err == nil || ctx.Err() != nil {
		return err
	}
	f.log.Debug("fetch: the system's package lists are not enough", "package", want, "why", err)
	f.log.Info("fetch: reading package lists into a folder of our own (no system changes)", "package", want)
	own, err := ownLists(stage)
	if err != nil {
		return err
	}
	own = append(slices.Clone(base), own...)
	if _, err := runTool(ctx, stage, a.get, append([]string{"update", "-q"}, own...)...); err != nil {
		return fmt.Errorf("read the package lists: %w", err)
	}
	return f.unpackPackages(ctx, a, own, stage, what, want)
}

// aptOptions returns options that make apt treat the wanted packages as not installed. Otherwise apt would not download
// packages that the system's records list although their programs are gone.
func aptOptions(stage, want string) ([]string, error) {
	known, err := os.ReadFile(dpkgStatus)
	if err != nil {
		return nil, err
	}
	family, _, _ := strings.Cut(want, "-")
	status := filepath.Join(stage, "status")
	if err := os.WriteFile(status, withoutFamily(known, family), 0o644); err != nil {
		return nil, err
	}
	// Hooks after an update may clean the system's caches, so disable them. apt reads the file given with -c last.
	conf := filepath.Join(stage, "apt.conf")
	if err := os.WriteFile(conf, []byte("#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n"+
		"#clear APT::Update::Post-Invoke-Success;\n"), 0o644); err != nil {
		return nil, err
	}
	return []string{"-c", conf, "-o", "Dir::State::status=" + status, "-o", "Debug::NoLocking=1", "-o",
		"Acquire::Retries=3"}, nil
}

// withoutFamily removes the records of packages named FAMILY or FAMILY-….
func withoutFamily(status []byte, family string) []byte {
	var out []byte
	for record := range strings.SplitSeq(string(status), "\n\n") {
		first, _, _ := strings.Cut(strings.TrimLeft(record, "\n"), "\n")
		name, ok := strings.CutPrefix(first, "Package: ")
		if !ok || name == family || strings.HasPrefix(name, family+"-") {
			continue
		}
		out = append(append(out, strings.Trim(record, "\n")...), "\n\n"...)
	}
	return out
}

// ownLists returns options that place apt's state and cache in stage, so that an ordinary user can run update.
func ownLists(stage string) ([]string, error) {
	state, cache := filepath.Join(stage, "state"), filepath.Join(stage, "cache")
	for _, dir := range []string{filepath.Join(state, "lists/partial"), filepath.Join(cache, "archives/partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// The configuration may set the path of the lists itself, which takes precedence over Dir::State. The same holds
	// for the status file.
	return []string{"-o", "Dir::State=" + state, "-o", "Dir::State::lists=" + filepath.Join(state, "lists"), "-o",
		"Dir::Cache=" + cache}, nil
}

// unpackPackages plans, downloads, unpacks, tests and publishes one bundle.
func (f *fetcher) unpackPackages(ctx context.Context, a apt, opts []string, stage, what, want string) error {
	began := time.Now()
	out, err := runTool(ctx, stage, a.get, append([]string{"install", "-s", "-q", "--no-install-recommends", want},
		opts...)...)
	if err != nil {
		return err
	}
	chosen, server, err := choosePackages(readPlan(out))
	if err != nil {
		return err
	}
	name := bundleName(server, chosen)
	f.log.Info("fetch: downloading "+what+" (no system changes)", "package", server.name, "version", server.version,
		"packages", len(chosen), "into", filepath.Join(f.cache, bundlesName, name))
	debs := filepath.Join(stage, "debs")
	root := filepath.Join(stage, bundlesName, name)
	for _, dir := range []string{debs, root} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	args := append([]string{"download", "-q"}, opts...)
	for _, p := range chosen {
		args = append(args, p.name+"="+p.version)
	}
	if _, err := runTool(ctx, debs, a.get, args...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) != len(chosen) {
		return fmt.Errorf("apt-get download brought %d of %d packages", len(files), len(chosen))
	}
	for _, file := range files {
		if _, err := runTool(ctx, stage, a.deb, "-x", file, root); err != nil {
			return err
		}
	}
	if err := plainModes(root); err != nil {
		return err
	}
	if err := f.checkBundle(ctx, stage); err != nil {
		return err
	}
	if err := f.publishBundle(root, name); err != nil {
		return err
	}
	f.log.Info("fetch: unpacked "+what, "dir", filepath.Join(f.cache, bundlesName, name),
		"took", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// plainModes makes a bundle readable and executable for every user, independently of the umask. It also clears set-id
// bits, because nothing in a bundle may run as another user.
func plainModes(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() || info.Mode().Perm()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}

var userinfo = regexp.MustCompile(`://[^/@\s]*@`)

// withoutCredentials removes user names and passwords from URLs in a tool's output. Configured mirrors may have them.
func withoutCredentials(s string) string { return userinfo.ReplaceAllString(s, "://") }
