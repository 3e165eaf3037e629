package config

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// DefaultService is where the node's image store listens, if there is one.
const DefaultService = "/run/gangway-store/store.sock"

// NoService is the value of image.service that says not to use one.
const NoService = "none"

// ServiceSocket is the socket of the node's image store, which images of registries come
// from, or "" where they come from the user's own store. In this order it is what
// GANGWAY_IMAGE_SERVICE says; none, where the user names a store, by --store or
// GANGWAY_STORE; what image.service says; the usual one, where that exists. What is
// locked only the system's file says.
func (c *Config) ServiceSocket(getenv func(string) string, flag string) (string, error) {
	path := c.Image.Service
	locked := c.Override("", "image.service") != nil
	switch env := getenv("GANGWAY_IMAGE_SERVICE"); {
	case env != "":
		if err := c.Override("GANGWAY_IMAGE_SERVICE", "image.service"); err != nil {
			return "", err
		}
		path = env
	case !locked && (flag != "" || getenv("GANGWAY_STORE") != ""):
		return "", nil
	}
	switch {
	case path == NoService:
		return "", nil
	case path == "":
		if _, err := os.Lstat(DefaultService); err != nil {
			return "", nil
		}
		return DefaultService, nil
	case !filepath.IsAbs(path):
		return "", &fault.Error{
			What: fmt.Errorf("configuration: image.service is %q", path),
			Hint: "write the absolute path of its socket, or \"none\"",
		}
	}
	return path, nil
}
