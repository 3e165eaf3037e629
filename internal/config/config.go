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
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
}

// Image is the table [image].
type Image struct {
	Store   string `toml:"store"`    // the directory of images
	MaxSize string `toml:"max_size"` // of an image's layers, as in "50G"
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
	var c Config
	if _, err := read(f.System, &c); err != nil {
		return Config{}, err
	}
	user := c
	user.Registry = maps.Clone(c.Registry)
	keys, err := read(f.User, &user)
	if err != nil {
		return Config{}, err
	}
	for _, key := range keys {
		if lock, ok := c.lockOf(key); ok {
			return Config{}, lockedFault(f.User, key, lock)
		}
	}
	user.Locked = c.Locked
	return user, nil
}

// Override says whether a flag or an environment variable, by its name, may set key.
func (c *Config) Override(by, key string) error {
	if lock, ok := c.lockOf(key); ok {
		return lockedFault(by, key, lock)
	}
	return nil
}

func (c *Config) lockOf(key string) (string, bool) {
	i := slices.IndexFunc(c.Locked, func(lock string) bool {
		return key == lock || strings.HasPrefix(key, lock+".")
	})
	if i < 0 {
		return "", false
	}
	return c.Locked[i], true
}

func lockedFault(by, key, lock string) error {
	return &fault.Error{
		What:  fmt.Errorf("%s sets %s, which the administrator has locked", by, key),
		Cause: fmt.Sprintf("locked lists %q in the system's configuration", lock),
		Hint:  "remove the setting, or ask the administrator",
	}
}

// read decodes a file over c and returns the keys that it sets.
func read(file string, c *Config) ([]string, error) {
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
	hint := "the file is TOML; mend it or move it away"
	dec := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	err = dec.Decode(c)
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		err = fmt.Errorf("key %s is unknown", strings.Join(strict.Errors[0].Key(), "."))
		hint = `there are locked, image.store, image.max_size, and in [registry."HOST"] mirrors, ca, plain_http, skip_verify`
	}
	var all map[string]any
	if err == nil {
		err = toml.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, &fault.Error{What: fmt.Errorf("read configuration %s: %w", file, err), Hint: hint}
	}
	return keysOf("", all), nil
}

// keysOf returns the keys of a table that are no tables, as "image.store".
func keysOf(prefix string, table map[string]any) []string {
	var keys []string
	for _, k := range slices.Sorted(maps.Keys(table)) {
		if sub, ok := table[k].(map[string]any); ok {
			keys = append(keys, keysOf(prefix+k+".", sub)...)
		} else {
			keys = append(keys, prefix+k)
		}
	}
	return keys
}
