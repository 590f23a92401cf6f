package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that a server runs as.
type account struct {
	uid, gid uint32
	name     string // empty: no passwd entry
	// mapped: the uid has no passwd entry, which Postgres requires. The server then runs in a user namespace in which
	// its uid is mappedID.
	mapped bool
}

// mappedID is the uid of the user nobody on every Linux system in use.
const mappedID = 65534

// AccountError reports that no user was found that a server could run as.
type AccountError struct{ Problem string }

func (e *AccountError) Error() string { return e.Problem }

func (a account) String() string {
	if a.name == "" {
		return fmt.Sprintf("uid %d", a.uid)
	}
	return a.name
}

// isOtherUser reports whether the account differs from this process's user.
func (a account) isOtherUser() bool { return int(a.uid) != os.Geteuid() }

// giveTo makes the account the owner of one file or folder. It does not follow links.
func (a account) giveTo(path string) error {
	if !a.isOtherUser() {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// Group ids that distributions leave unused (Debian reserves 65000 to 65533).
const firstPrivateGroup, lastPrivateGroup = 65004, 65099

// inPrivateGroup returns the account with an unused group, for servers that root starts. The accounts nobody, postgres
// and that of SUDO_UID run other programs too. The unused group keeps those programs out of Herald's folders
// (restrictFolder), and the kernel does not let them trace the servers.
func (a account) inPrivateGroup() account {
	if !a.isOtherUser() {
		return a
	}
	for gid := uint32(firstPrivateGroup); gid <= lastPrivateGroup; gid++ {
		var unknown user.UnknownGroupIdError
		if _, err := user.LookupGroupId(strconv.Itoa(int(gid))); errors.As(err, &unknown) {
			a.gid = gid
			break
		}
	}
	return a
}

// restrictFolder lets only root and the account's group pass through a folder that root created. It leaves a folder of
// another owner unchanged, and does not follow a link, because its target may not be Herald's.
func (a account) restrictFolder(dir string, mode fs.FileMode) error {
	if !a.isOtherUser() {
		return nil
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR): // a link
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return nil
	}
	return errors.Join(f.Chown(-1, int(a.gid)), f.Chmod(mode))
}

// pickAccount selects the user for Postgres. owner is the uid that owns an existing cluster, else -1: only its owner
// can serve a cluster. For root it selects SUDO_UID, else herald, else postgres, else nobody. Other users run Postgres
// as themselves.
func pickAccount(owner int) (account, error) {
	self := os.Geteuid()
	if self != 0 {
		if owner >= 0 && owner != self {
			return account{}, &AccountError{fmt.Sprintf("the embedded Postgres data belongs to uid %d "+
				"and this process is uid %d: run as that user or choose another HERALD_DATA", owner, self)}
		}
		return knownOrMapped(self, os.Getegid())
	}
	if owner == 0 {
		return account{}, &AccountError{"the embedded Postgres data belongs to root, " +
			"and Postgres refuses to run as root: chown it to the user that made it, or choose another HERALD_DATA"}
	}
	if owner > 0 {
		return knownOrMapped(owner, owner)
	}
	if id, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && id > 0 {
		if u, err := user.LookupId(strconv.Itoa(id)); err == nil {
			return fromPasswd(u)
		}
	}
	for _, name := range []string{"herald", "postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil && u.Uid != "0" {
			return fromPasswd(u)
		}
	}
	return account{}, &AccountError{"Postgres refuses to run as root " +
		"and there is no user herald, postgres or nobody to run it as: run as an ordinary user or set DATABASE_URL"}
}

func fromPasswd(u *user.User) (account, error) {
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return account{}, fmt.Errorf("read the passwd entry of %s: %w", u.Username, err)
	}
	return account{uid: uint32(uid), gid: uint32(gid), name: u.Username}, nil
}

func knownOrMapped(uid, gid int) (account, error) {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fromPasswd(u)
	}
	a := account{uid: uint32(uid), gid: uint32(gid)}
	if namespaces {
		if _, err := user.LookupId(strconv.Itoa(mappedID)); err == nil {
			a.mapped = true
			return a, nil
		}
	}
	return account{}, a.noPasswdEntry()
}

func (a account) noPasswdEntry() error {
	return &AccountError{fmt.Sprintf("uid %d has no passwd entry, which Postgres insists on, "+
		"and a user namespace cannot be used instead: "+
		"add an entry to /etc/passwd, run as another user, or set DATABASE_URL", a.uid)}
}

// explainStart replaces the error of starting a process, or of giving a folder away, if the cause is the account. In a
// container, root may lack the capabilities, or its user namespace the user.
func (a account) explainStart(err error) error {
	refused := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EUSERS) ||
		errors.Is(err, syscall.EINVAL)
	switch {
	case refused && a.mapped:
		return a.noPasswdEntry()
	case a.isOtherUser() && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL)):
		return &AccountError{fmt.Sprintf("this process is root but may not become user %s (%v), "+
			"and Postgres refuses to run as root: run as an ordinary user or set DATABASE_URL", a, err)}
	}
	return err
}
