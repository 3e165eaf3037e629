package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// RunConfig is what an image says about how it is run. Labels are shown, never obeyed.
type RunConfig struct {
	Env                          []string // NAME=value
	Entrypoint, Cmd              []string
	WorkingDir, User, StopSignal string
	Labels                       map[string]string
}

func runConfig(c *oci.Config) RunConfig {
	return RunConfig{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal, Labels: c.Labels,
	}
}

// config returns what the configuration of an image of the store says.
func (s *Store) config(reference string, d oci.Digest) (RunConfig, error) {
	raw, err := s.blob(d)
	if err != nil {
		return RunConfig{}, incomplete(&Image{Reference: reference}, err)
	}
	c, err := oci.DecodeConfig(raw)
	if err != nil {
		return RunConfig{}, fmt.Errorf("image %s: %w", reference, err)
	}
	return runConfig(&c), nil
}

// configHead begins the trailer of a squashfs file that has a configuration.
const configHead = "gangway-config 1 "

// Trailer returns the configuration as squashfs.FileWriter.Commit takes it: behind the
// image, where mount, unsquashfs and Enroot do not look, and OpenFile does.
func (c RunConfig) Trailer() (io.Reader, error) {
	var doc struct {
		Config RunConfig `json:"config"`
	}
	doc.Config = c
	raw, err := json.Marshal(doc)
	if err == nil && len(raw) > oci.MaxDocument {
		err = fmt.Errorf("it has %d bytes, more than %d", len(raw), oci.MaxDocument)
	}
	if err == nil {
		_, err = oci.DecodeConfig(raw) // what could not be read is not written
	}
	if err != nil {
		return nil, fmt.Errorf("write image configuration: %w", err)
	}
	head := fmt.Sprintf("%s%d %s\n", configHead, len(raw), oci.DigestOf(raw))
	return io.MultiReader(strings.NewReader(head), bytes.NewReader(raw)), nil
}

// errNoConfig says that there is no configuration behind a squashfs image.
var errNoConfig = errors.New("no image configuration")

// readTrailer returns the configuration behind a squashfs image.
func readTrailer(r *squashfs.Reader) (RunConfig, error) {
	t := r.Trailer()
	if t == nil {
		return RunConfig{}, errNoConfig
	}
	head := make([]byte, min(t.Size(), 256))
	if _, err := t.ReadAt(head, 0); err != nil {
		return RunConfig{}, fmt.Errorf("read image configuration: %w", err)
	}
	line, _, _ := strings.Cut(string(head), "\n")
	text, ok := strings.CutPrefix(line, configHead)
	if !ok {
		return RunConfig{}, errNoConfig // it is something else
	}
	var size int64
	var digest string
	_, err := fmt.Sscanf(text, "%d %s", &size, &digest)
	if at := int64(len(line) + 1); err != nil || size < 0 || size > min(t.Size()-at, oci.MaxDocument) {
		return RunConfig{}, fmt.Errorf("read image configuration: %w: it begins with %.100q, in %d bytes", ErrDamaged, line, t.Size())
	}
	raw := make([]byte, size)
	if _, err := t.ReadAt(raw, int64(len(line)+1)); err != nil && err != io.EOF {
		return RunConfig{}, fmt.Errorf("read image configuration: %w", err)
	}
	if string(oci.DigestOf(raw)) != digest {
		return RunConfig{}, fmt.Errorf("read image configuration: %w: it has another digest", ErrDamaged)
	}
	c, err := oci.DecodeConfig(raw)
	return runConfig(&c), err
}

// environmentFile is where Enroot keeps the environment of an image that it converted.
const (
	environmentFile = "etc/environment"
	maxEnvironment  = 1 << 20
)

// fileConfig returns the configuration of a squashfs file: what Gangway wrote behind it,
// else the environment that Enroot and Linux keep in /etc/environment.
func fileConfig(r *squashfs.Reader, path string) (RunConfig, error) {
	c, err := readTrailer(r)
	if errors.Is(err, errNoConfig) {
		c, err = environment(r.FS())
	}
	if err != nil {
		return RunConfig{}, &fault.Error{
			What: fmt.Errorf("image %s: %w", path, err),
			Hint: "make or fetch the file again; to use its files alone: unsquashfs " + path + ", and use the directory",
		}
	}
	return c, nil
}

// DirConfig returns the configuration of a root file system in a directory: its
// environment, from /etc/environment, as data. Symlinks that lead out of the directory
// count as missing.
func DirConfig(dir string) (RunConfig, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return RunConfig{}, fmt.Errorf("read image configuration: %w", err)
	}
	defer root.Close()
	if st, err := root.Stat(environmentFile); err != nil || !st.Mode().IsRegular() {
		return RunConfig{}, nil
	}
	return environment(root.FS())
}

func environment(files fs.FS) (RunConfig, error) {
	st, err := fs.Stat(files, environmentFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
		return RunConfig{}, nil
	}
	if err == nil && st.Size() > maxEnvironment {
		err = fmt.Errorf("it has %d bytes, more than %d", st.Size(), maxEnvironment)
	}
	var b []byte
	if err == nil {
		b, err = fs.ReadFile(files, environmentFile)
	}
	if err != nil {
		return RunConfig{}, fmt.Errorf("read /%s: %w", environmentFile, err)
	}
	return RunConfig{Env: parseEnvironment(string(b))}, nil
}

// parseEnvironment takes NAME=value from lines. Nothing is evaluated; one pair of
// quotes around a value, as pam_env takes it, is no part of it. Other lines are comments.
func parseEnvironment(text string) []string {
	var env []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(strings.TrimLeft(line, " \t"), "\r\n")
		line = strings.TrimPrefix(line, "export ")
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \t#\"'\\$`") || strings.IndexByte(line, 0) >= 0 {
			continue
		}
		if v := strings.TrimRight(value, " \t"); len(v) > 1 && (v[0] == '"' || v[0] == '\'') && v[len(v)-1] == v[0] {
			value = v[1 : len(v)-1]
		}
		env = append(env, name+"="+value)
	}
	return env
}

// Configuration returns the bytes of an image's configuration, with their digest proved.
func (s *Store) Configuration(i *Image) ([]byte, error) {
	raw, err := s.blob(i.Config)
	if err != nil {
		return nil, incomplete(i, err)
	}
	return raw, nil
}
