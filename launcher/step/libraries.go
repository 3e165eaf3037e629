package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// libraries adds what vendors' hooks would have ldconfig find: the libraries that are
// mounted into the directories that they name.
func (s *step) libraries(actions []cdi.Action) {
	n := &s.given.needs
	for _, action := range actions {
		if action.Hook == "enable-cuda-compat" && n.Facts.Driver == "" && action.DriverVersion != "" {
			n.Facts = nvidia.FactsOf(action.DriverVersion)
		}
		for _, folder := range action.Folders {
			if slices.Contains(n.Dirs, folder) {
				continue
			}
			n.Dirs = append(n.Dirs, folder)
			entries, err := mountedLibraries(folder, s.given.made.Mounts)
			if err != nil {
				s.Log.Warn("the container's loader is not told of all libraries of "+folder, "err", err)
			}
			n.Entries = append(n.Entries, entries...)
		}
	}
}

// mountedLibraries reads the libraries that mounts put into a directory, sorted by name,
// and says what of them cannot be read.
func mountedLibraries(folder string, mounts []specs.Mount) ([]ldcache.Entry, error) {
	var skipped []error
	files := map[string]string{} // of the host, by their paths in the container
	for _, m := range mounts {   // in their order, so that the last one counts
		rest, inside := strings.CutPrefix(folder+"/", strings.TrimSuffix(m.Destination, "/")+"/")
		switch {
		case inside:
			clear(files)
			if m.Type != "bind" {
				continue // of nothing that is there
			}
			dir := filepath.Join(m.Source, rest)
			list, err := os.ReadDir(dir)
			if err != nil && (rest == "" || !errors.Is(err, fs.ErrNotExist)) {
				skipped = append(skipped, err)
			}
			for _, e := range list {
				files[path.Join(folder, e.Name())] = filepath.Join(dir, e.Name())
			}
		case path.Dir(m.Destination) == folder:
			delete(files, m.Destination)
			if m.Type == "bind" {
				files[m.Destination] = m.Source
			}
		}
	}
	var all []ldcache.Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.Contains(path.Base(name), ".so") {
			continue
		}
		entries, err := libraryEntries(name, files[name])
		if err != nil {
			skipped = append(skipped, err)
		}
		all = append(all, entries...)
	}
	if n := len(skipped); n > 1 {
		return all, fmt.Errorf("%w (and %d more)", skipped[0], n-1)
	}
	return all, errors.Join(skipped...)
}

// libraryEntries is what the loader's cache says of a library; nothing of what is none.
func libraryEntries(name, file string) ([]ldcache.Entry, error) {
	// What is there may be a pipe, for which nobody is to be waited.
	if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	entries, err := ldcache.EntriesOf(name, f)
	if err != nil {
		return nil, nil // a linker's script, say
	}
	return entries, nil
}

// load looks into the image for what loaders of libraries need, or has it looked into.
func (s *step) load(ctx context.Context, n nvidia.Needs) (nvidia.Loaded, error) {
	switch {
	case s.image.Dir != "":
		return s.loadDirectory(ctx, n)
	case s.image.Files != nil:
		c, err := s.confinedProcess(ctx)
		if err != nil {
			return nvidia.Loaded{}, err
		}
		return c.load(ctx, n)
	}
	t, err := s.image.tree()
	if err != nil {
		return nvidia.Loaded{}, err
	}
	return nvidia.Load(t.FS(), n), nil
}

// loadDirectory looks into an image that is a directory. For root somebody else does, who
// may read less of it.
func (s *step) loadDirectory(ctx context.Context, n nvidia.Needs) (nvidia.Loaded, error) {
	d, err := openDirRoot(s.image.Dir)
	if err != nil {
		return nvidia.Loaded{}, err
	}
	if proc.IsRoot() {
		defer d.close()
		c, err := s.startConfined(ctx, []*os.File{d.root}, confinedOpen{Dir: true})
		if err != nil {
			return nvidia.Loaded{}, err
		}
		loaded, err := c.load(ctx, n)
		return loaded, errors.Join(err, c.close())
	}
	// A file system that does not answer is waited for no longer than the user does.
	done := make(chan nvidia.Loaded, 1)
	go func() {
		defer d.close()
		done <- nvidia.Load(d.FS(), n)
	}()
	select {
	case loaded := <-done:
		return loaded, nil
	case <-ctx.Done():
		return nvidia.Loaded{}, context.Cause(ctx)
	}
}
