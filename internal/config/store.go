package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ForImages is the configuration of a process with an environment, in which image.store is
// what GANGWAY_STORE says, or the flag --store, where these are given and not locked.
func ForImages(getenv func(string) string, flag string) (Config, error) {
	c, err := Load(Paths(getenv))
	if err != nil {
		return c, err
	}
	if dir := c.Image.Store; dir != "" && !filepath.IsAbs(dir) {
		return c, &fault.Error{
			What: fmt.Errorf("configuration: image.store is %q", dir),
			Hint: "write an absolute path: it would be another store in each directory",
		}
	}
	for _, o := range []struct{ by, value string }{{"GANGWAY_STORE", getenv("GANGWAY_STORE")}, {"--store", flag}} {
		if o.value == "" {
			continue
		}
		if err := c.Override(o.by, "image.store"); err != nil {
			return c, err
		}
		c.Image.Store = o.value
	}
	return c, nil
}

// StoreDir is the absolute path of the directory of images: image.store, or the user's
// own where that is not set.
func (c *Config) StoreDir(getenv func(string) string) (string, error) {
	if c.Image.Store != "" {
		return filepath.Abs(c.Image.Store)
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gangway"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", &fault.Error{
			What: errors.New("find the image store: HOME is not set"),
			Hint: "say where images go: --store DIR, or set GANGWAY_STORE",
		}
	}
	return filepath.Join(home, ".cache", "gangway"), nil
}
