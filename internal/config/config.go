// Package config reads Gangway's configuration: one TOML file of the system and one
// of the user, of which the user's counts, except for keys that the system's lists
// under "locked".
//
//	cfg, err := config.Load(config.Paths(os.Getenv))
//
// Unknown keys are errors, so that a misspelt one is not ignored for years. The
// package expands no variables, runs nothing and holds no state; a Config is a value
// that belongs to its reader. Environment variables and flags override it where they
// are read, by Override.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Config is all of the configuration. The zero value is that of a host without any.
type Config struct {
	// Locked are keys, as in "image.store" or "registry", that only the system's
	// file may set; what is below a locked key is locked too.
	Locked   []string            `toml:"locked"`
	Image    Image               `toml:"image"`
	Registry map[string]Registry `toml:"registry"` // by host[:port]
	Devices  Devices             `toml:"devices"`
	Hooks    Hooks               `toml:"hooks"`
}

// Devices is the table [devices].
type Devices struct {
	CDIDirs     []string `toml:"cdi_dirs"`     // of CDI specifications; none: /etc/cdi and /var/run/cdi
	NvidiaRoots []string `toml:"nvidia_roots"` // where the NVIDIA driver's files are, before the usual places
	RDMA        string   `toml:"rdma"`         // what --rdma is without it
}

// Hooks is the table [hooks].
type Hooks struct {
	Dirs    []string `toml:"dirs"`    // with prepare, start and stop in them
	Timeout string   `toml:"timeout"` // of each hook, as in "30s"
	Enroot  bool     `toml:"enroot"`  // Enroot's hooks.d, environ.d and mounts.d are run too
}

// Image is the table [image].
type Image struct {
	Store   string `toml:"store"`    // the directory of images
	MaxSize string `toml:"max_size"` // of an image's layers, as in "50G"
	Service string `toml:"service"`  // the socket of the node's image store, or "none"; see ServiceSocket
}

// Registry is a table [registry."HOST"].
type Registry struct {
	Mirrors    []string `toml:"mirrors"`     // host[:port][/prefix], tried in this order before the registry
	CA         string   `toml:"ca"`          // PEM file of authorities trusted besides the system's
	PlainHTTP  bool     `toml:"plain_http"`  // no TLS
	SkipVerify bool     `toml:"skip_verify"` // TLS without proof of who answers
}

// Files are the paths of configuration files; empty ones are left out.
type Files struct{ System, User string }

// Paths returns where the files are for a process with an environment.
func Paths(getenv func(string) string) Files {
	f := Files{System: "/etc/gangway/gangway.toml"}
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		f.User = filepath.Join(dir, "gangway", "gangway.toml")
	} else if home := getenv("HOME"); home != "" {
		f.User = filepath.Join(home, ".config", "gangway", "gangway.toml")
	}
	return f
}

// Load reads the files; one that does not exist is as good as empty.
func Load(f Files) (Config, error) {
	system, err := read(f.System)
	if err != nil {
		return Config{}, err
	}
	user, err := read(f.User)
	if err != nil {
		return Config{}, err
	}
	locks, err := locksOf(f.System, system)
	if err != nil {
		return Config{}, err
	}
	for key := range keys(nil, user) {
		if lock := locks.of(key); lock != "" {
			return Config{}, lockedFault(f.User, strings.Join(key, "."), lock)
		}
	}
	delete(user, "locked") // which is the administrator's word
	all, err := toml.Marshal(merge(system, user))
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	var c Config
	if err := toml.Unmarshal(all, &c); err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return c, nil
}

// Override says whether a flag or an environment variable, by its name, may set key,
// as "image.store".
func (c *Config) Override(by, key string) error {
	for _, lock := range c.Locked {
		if path, err := splitKey(lock); err == nil && within(strings.Split(key, "."), path) {
			return lockedFault(by, key, lock)
		}
	}
	return nil
}

func lockedFault(by, key, lock string) error {
	return &fault.Error{
		What:  fmt.Errorf("%s sets %s, which the administrator has locked", by, key),
		Cause: fmt.Sprintf("locked lists %q in the system's configuration", lock),
		Hint:  "remove the setting, or ask the administrator",
	}
}

// read returns the tables of a file, with the names of registries in their one form.
func read(file string) (map[string]any, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var c Config
	var all map[string]any
	// The types are proved by the one, what is set comes from the other.
	if err = toml.Unmarshal(b, &c); err == nil {
		err = toml.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, &fault.Error{What: fmt.Errorf("read configuration %s: %w", file, err), Hint: "the file is TOML; mend it or move it away"}
	}
	for key := range keys(nil, all) {
		if !known(key) {
			return nil, &fault.Error{What: fmt.Errorf("read configuration %s: key %s is unknown", file, strings.Join(key, ".")), Hint: knownHint}
		}
	}
	if hosts, ok := all["registry"].(map[string]any); ok {
		one := map[string]any{}
		for host, settings := range hosts {
			if one[canonicalHost(host)] != nil {
				return nil, &fault.Error{
					What: fmt.Errorf("read configuration %s: registry %s is there under two names", file, canonicalHost(host)),
					Hint: "put its settings into one table",
				}
			}
			one[canonicalHost(host)] = settings
		}
		all["registry"] = one
	}
	return all, nil
}

// canonicalHost is how references name a registry.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// merge puts the tables of the user over those of the system, key by key.
func merge(system, user map[string]any) map[string]any {
	all := maps.Clone(system)
	if all == nil {
		all = map[string]any{}
	}
	for k, v := range user {
		below, ok1 := all[k].(map[string]any)
		above, ok2 := v.(map[string]any)
		if ok1 && ok2 {
			v = merge(below, above)
		}
		all[k] = v
	}
	return all
}
