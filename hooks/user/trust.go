package user

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// maxLinks is how many symbolic links the kernel follows.
const maxLinks = 40

// trusted refuses a program that others than root and the user could have put there:
// every file, link and directory that the kernel passes on its way to it must belong to
// one of them, and be writable by no other.
func (r Runner) trusted(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("check hook: %w", err)
	}
	me := uint32(os.Geteuid())
	if r.Credential != nil {
		me = r.Credential.Uid
	}
	links := 0
	at, rest := "/", strings.Split(path[1:], "/")
	for {
		last := len(rest) == 0
		st, err := ownedBy(at, me, len(rest) > 1) // what holds a name of ours may not be sticky either
		if err != nil {
			return err
		}
		if st.Mode()&os.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return fmt.Errorf("check hook %s: %w", path, syscall.ELOOP)
			}
			target, err := os.Readlink(at)
			if err != nil {
				return fmt.Errorf("check hook: %w", err)
			}
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		} else if last {
			return nil
		}
		// A target may have "..", ".", and doubled or closing slashes.
		for len(rest) > 0 && (rest[0] == "" || rest[0] == ".") {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			continue
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// ownedBy checks one file, link or directory. In a sticky directory others can add
// names but not take away ours.
func ownedBy(name string, me uint32, sticky bool) (os.FileInfo, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("check hook: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("check hook %s: %w", name, errors.ErrUnsupported)
	}
	refuse := func(cause, hint string) error {
		return &fault.Error{What: fmt.Errorf("run hook: %s is not to be trusted", name), Cause: cause, Hint: hint}
	}
	if sys.Uid != 0 && sys.Uid != me {
		return nil, refuse(fmt.Sprintf("it belongs to the user %d, who could change it", sys.Uid), "if it is right as it is: chown root "+name)
	}
	others := st.Mode()&0o022 != 0 && st.Mode()&os.ModeSymlink == 0
	if others && !(sticky && st.IsDir() && st.Mode()&os.ModeSticky != 0) {
		return nil, refuse(fmt.Sprintf("its mode is %04o: others could change it", st.Mode().Perm()), "chmod go-w "+name)
	}
	return st, nil
}
