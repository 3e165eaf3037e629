package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const maxFile = 1 << 20 // bytes of a file with credentials

// Options says how a Finder works. The zero value is good.
type Options struct {
	Log           *slog.Logger  // for warnings; nil for none
	HelperTimeout time.Duration // how long a credential helper may take; 0 is 30 s
}

// Finder looks for credentials in the files of the user that runs the program, as
// the environment names them. It may be used by any number of goroutines at once.
type Finder struct {
	log     *slog.Logger
	timeout time.Duration

	mu     sync.Mutex
	warned map[string]bool
}

// New returns a Finder.
func New(o Options) *Finder {
	f := &Finder{log: o.Log, timeout: o.HelperTimeout, warned: map[string]bool{}}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.timeout == 0 {
		f.timeout = 30 * time.Second
	}
	return f
}

// place is a file to look into.
type place struct {
	path string
	find func(context.Context, place, []byte, query) (Credential, error)
}

// query is what is asked for.
type query struct{ host, repository, user string }

// suits says whether a name is the one that was asked for. A token has no name.
func (q query) suits(name string) bool { return q.user == "" || name == "" || name == q.user }

// Find returns the first credential for a repository on a host, HOST[:PORT], and
// "docker.io" for Docker Hub. Where user is not empty only that user's counts. The
// zero Credential means that there is none. An unreadable or broken file is an
// error, because going on without it would end in a puzzling refusal.
func (f *Finder) Find(ctx context.Context, host, repository, user string) (Credential, error) {
	q := query{canonical(host), repository, user}
	for _, p := range f.places() {
		c, err := f.look(ctx, p, q)
		if err != nil {
			return Credential{}, fmt.Errorf("find credential for %s: %w", host, err)
		}
		if !c.IsZero() {
			return c, nil
		}
	}
	return Credential{}, nil
}

// Looked lists the files that Find looks into, for people.
func (f *Finder) Looked() []string {
	var names []string
	for _, p := range f.places() {
		name := p.path
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			name += " (does not exist)"
		}
		names = append(names, name)
	}
	return names
}

func (f *Finder) places() []place {
	var all []place
	seen := map[string]bool{}
	add := func(find func(context.Context, place, []byte, query) (Credential, error), base string, names ...string) {
		path := filepath.Join(append([]string{base}, names...)...)
		if base != "" && !seen[path] {
			seen[path] = true
			all = append(all, place{path, find})
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // nothing there then
	}
	below := func(dir, name string) string {
		if dir == "" {
			return ""
		}
		return filepath.Join(dir, name)
	}
	config := first(os.Getenv("XDG_CONFIG_HOME"), below(home, ".config"))
	add(f.inContainers, os.Getenv("REGISTRY_AUTH_FILE"))
	add(f.inContainers, os.Getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	add(f.inContainers, config, "containers", "auth.json")
	add(f.inDocker, first(os.Getenv("DOCKER_CONFIG"), below(home, ".docker")), "config.json")
	add(inEnroot, first(os.Getenv("ENROOT_CONFIG_PATH"), below(config, "enroot")), ".credentials")
	return all
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (f *Finder) look(ctx context.Context, p place, q query) (Credential, error) {
	if err := context.Cause(ctx); err != nil {
		return Credential{}, err
	}
	raw, err := f.read(p.path)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return Credential{}, err
	}
	return p.find(ctx, p, raw, q)
}

// read returns a file's content, nothing if there is none.
func (f *Finder) read(path string) ([]byte, error) {
	// Opening a FIFO would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || path == os.DevNull {
		return nil, nil
	}
	if err != nil {
		return nil, &fault.Error{What: err, Hint: "make it readable for you, or remove it: chmod 600 " + path}
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: it is not a regular file", path)
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", path, maxFile)
	}
	f.warn(path, st.Mode())
	return raw, nil
}

// warn says once of a file that others may read it.
func (f *Finder) warn(path string, mode fs.FileMode) {
	if mode&0o044 == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.warned[path] {
		f.warned[path] = true
		f.log.Warn("others can read a file with credentials", "file", path, "mode", mode.Perm().String(), "hint", "chmod 600 "+path)
	}
}
