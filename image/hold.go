package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Hold says that something which outlives a process, a named container, needs an
// image as it is, whatever its reference comes to mean.
type Hold struct {
	Name string `json:"name"` // of the container
	// Dir is where the container is kept. Names are unique within one directory, and with
	// its own a container is gone.
	Dir   string    `json:"dir,omitempty"`
	Since time.Time `json:"since"`
	Image Image     `json:"image"`
}

// holds is where the holds lie.
const holds = "holds/*.json"

func (s *Store) holdPath(name, dir string) string {
	sum := sha256.Sum256([]byte(cmp.Or(dir, name)))
	return s.path("holds", hex.EncodeToString(sum[:16])+".json")
}

// Hold keeps the files of an image, that the store has, from GC and Remove until
// Release, or until the container's directory dir is gone; "" is none. A hold of that
// container that is there is replaced.
func (s *Store) Hold(ctx context.Context, name, dir string, i *Image) error {
	// Not while somebody decides what is garbage.
	gc, err := s.lock(ctx, s.gcLock(), fsx.Shared)
	if err != nil {
		return err
	}
	defer func() { _ = gc.Release() }()
	for _, file := range s.files(i) {
		if file == s.recordPath(i.Reference, i.Platform) {
			continue // what its name means by now does not matter
		}
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("hold image for container %s: %w", name, incomplete(i, err))
		}
	}
	b, err := json.MarshalIndent(Hold{Name: name, Dir: dir, Since: s.now().UTC().Truncate(time.Second), Image: *i}, "", "  ")
	if err != nil {
		return err
	}
	if err := s.writeBytes(ctx, s.holdPath(name, dir), append(b, '\n')); err != nil {
		return fmt.Errorf("hold image for container %s: %w", name, err)
	}
	return nil
}

// Release ends a hold. It is no error if there is none of that container.
func (s *Store) Release(name, dir string) error {
	if err := removeAll(s.holdPath(name, dir)); err != nil {
		return s.fault(fmt.Errorf("release the image of container %s: %w", name, err))
	}
	return nil
}

// Holds returns all holds by name. Those that cannot be read are left out and returned
// as one joined error.
func (s *Store) Holds() ([]Hold, error) {
	var all []Hold
	var errs []error
	for _, file := range s.glob(holds) {
		h, err := readHold(file)
		switch {
		case err == nil:
			all = append(all, h)
		case !errors.Is(err, fs.ErrNotExist): // released meanwhile
			errs = append(errs, err)
		}
	}
	slices.SortFunc(all, func(a, b Hold) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Join(errs...)
}

func readHold(file string) (Hold, error) {
	var h Hold
	b, err := os.ReadFile(file)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("read hold %s: %w: %w", file, ErrDamaged, err)
	}
	if err := h.Image.check(); err != nil {
		return h, fmt.Errorf("read hold %s: %w: %w", file, ErrDamaged, err)
	}
	return h, nil
}

// abandoned says whether the container of a hold is gone, as far as this node can see:
// whoever made or removed it was killed. Where its directory was is still there.
func (h *Hold) abandoned() bool {
	if h.Dir == "" {
		return false
	}
	_, err := os.Lstat(h.Dir)
	_, parent := os.Stat(filepath.Dir(h.Dir))
	return errors.Is(err, fs.ErrNotExist) && parent == nil
}

// holders returns the names of the holds of an image.
func holders(all []Hold, i *Image) []string {
	var names []string
	for _, h := range all {
		if h.Image.Reference == i.Reference && h.Image.Platform == i.Platform && h.Image.Manifest == i.Manifest {
			names = append(names, h.Name)
		}
	}
	return names
}

// heldFault refuses to remove what containers need.
func heldFault(i *Image, names []string) error {
	what := "container"
	if len(names) > 1 {
		what = "containers"
	}
	list := strings.Join(names, " ")
	return &fault.Error{
		What:  fmt.Errorf("remove image %s: it is held by %s %s", i.Reference, what, list),
		Cause: "a stopped container starts again from its image",
		Hint:  "remove the " + what + " first: gangway container rm " + list,
	}
}
