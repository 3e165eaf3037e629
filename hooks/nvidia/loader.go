package nvidia

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
)

// CompatDir is where CUDA images have a newer libcuda than the host may have.
const CompatDir = "usr/local/cuda/compat"

// The note by which a forward-compatible libcuda says what it is for.
const (
	compatSection = ".note.cuda.fwd_compatibility"
	compatOwner   = "NVIDIA Corporation"
)

// Compat is the choice between the driver's libcuda and the image's. Nodes of one
// job that choose differently do not work together: the launcher compares Version.
type Compat struct {
	Use     bool            // the image's
	Version string          // of the libcuda that is used; of the driver if Use is false
	CUDA    string          // which CUDA that is; "" if not known
	Reason  string          // why, for people; "" if the image has none of its own
	Entries []ldcache.Entry // the image's libraries for the cache, if Use
}

// maxCompat is how many names of the directory are looked at.
const maxCompat = 256

// CompatLibcuda decides whether a container uses the newer libcuda in its image's
// /usr/local/cuda/compat. It does if there is exactly one, its branch is newer than
// the driver's, its ELF note (if it has one) is for a newer CUDA and does not leave
// out the driver's branch, and no GPU is of a consumer brand, on which forward
// compatibility is not supported.
//
// image is the image's root: it follows links within the image, and its regular
// files are io.ReaderAt as well, or are read whole if they are small. Where strangers can
// change it meanwhile, its Open has to refuse pipes instead of waiting for who writes to
// them. What cannot be read of it decides for the driver's, with the reason.
func CompatLibcuda(image fs.FS, f Facts) Compat {
	host := Compat{Version: f.Driver, CUDA: f.CUDA}
	because := func(format string, args ...any) Compat {
		host.Reason = "the driver's libcuda " + f.Driver + " is used: " + fmt.Sprintf(format, args...)
		return host
	}
	entries, err := fs.ReadDir(image, CompatDir)
	if errors.Is(err, fs.ErrNotExist) {
		return host
	}
	if err != nil {
		return because("the image's %s cannot be read: %v", CompatDir, err)
	}
	var files, versions []string
	for _, e := range entries[:min(len(entries), maxCompat)] {
		if !e.Type().IsRegular() || !strings.Contains(e.Name(), ".so") {
			continue
		}
		files = append(files, e.Name())
		if version, ok := strings.CutPrefix(e.Name(), "libcuda.so."); ok && strings.Contains(version, ".") {
			versions = append(versions, version)
		}
	}
	switch len(versions) {
	case 0:
		return host
	case 1:
	default:
		return because("the image has several in %s (%s)", CompatDir, strings.Join(versions, ", "))
	}
	cuda, reason := compatReason(image, versions[0], f)
	if reason != "" {
		return because("%s", reason)
	}
	c := Compat{
		Use: true, Version: versions[0], CUDA: cuda,
		Reason: fmt.Sprintf("the image's libcuda %s is used: it is newer than the driver's %s and made for it", versions[0], f.Driver),
	}
	for _, name := range files {
		_ = withReaderAt(image, CompatDir+"/"+name, func(r io.ReaderAt) error {
			entries, err := ldcache.EntriesOf("/"+CompatDir+"/"+name, r)
			if err == nil && entries[0].Flags == ldcache.HostFlags() {
				c.Entries = append(c.Entries, entries...)
			}
			return err // a file that is no library is none of ours
		})
	}
	return c
}

// compatReason says why the image's libcuda of a version is not to be used; "" if it
// is. cuda is the CUDA it is for, "" if its note does not say.
func compatReason(image fs.FS, version string, f Facts) (cuda, reason string) {
	if slices.Contains([]string{"geforce", "geforcertx", "titan", "titanrtx"}, f.Brand) {
		return "", "forward compatibility is not supported on GPUs of the brand " + f.Brand
	}
	note, err := compatNote(image, CompatDir+"/libcuda.so."+version)
	if err != nil {
		return "", fmt.Sprintf("the image's libcuda.so.%s cannot be read: %v", version, err)
	}
	if branch(version) <= branch(f.Driver) {
		return "", fmt.Sprintf("the image's %s is not newer", version)
	}
	if n, ok := compareVersions(note.CUDA, f.CUDA); note.CUDA != "" && f.CUDA != "" && ok && n <= 0 {
		return "", fmt.Sprintf("the image's %s is for CUDA %s, which the driver has itself", version, note.CUDA)
	}
	if len(note.Driver) > 0 && !slices.Contains(note.Driver, branch(f.Driver)) {
		return "", fmt.Sprintf("the image's %s is made for drivers of the branches %v only", version, note.Driver)
	}
	return note.CUDA, ""
}

// compatText is the description of the note, JSON.
type compatText struct {
	CUDA   string `json:"CUDA Version"`
	Driver []int  // branches
}

func compatNote(image fs.FS, name string) (compatText, error) {
	var c compatText
	err := withReaderAt(image, name, func(r io.ReaderAt) error {
		text, err := ldcache.ReadNote(r, compatSection, compatOwner)
		if err != nil || text == "" {
			return err
		}
		return json.Unmarshal([]byte(text), &c)
	})
	return c, err
}

// maxWhole is how much of a file is read whole that cannot be read at an offset.
const maxWhole = 8 << 20

// withReaderAt opens a regular file of the image.
func withReaderAt(image fs.FS, name string, use func(io.ReaderAt) error) error {
	f, err := openRegular(image, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if r, ok := f.(io.ReaderAt); ok {
		return use(r)
	}
	b, err := readAll(f, maxWhole)
	if err != nil {
		return err
	}
	return use(strings.NewReader(string(b)))
}

// openRegular opens a regular file of the image. What it is is asked for first, because to
// open a pipe would wait for somebody who writes to it.
func openRegular(image fs.FS, name string) (fs.File, error) {
	if err := regular(fs.Stat(image, name)); err != nil {
		return nil, err
	}
	f, err := image.Open(name)
	if err != nil {
		return nil, err
	}
	if err := regular(f.Stat()); err != nil { // by now
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func regular(st fs.FileInfo, err error) error {
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("not a regular file: %w", fs.ErrInvalid)
	}
	return err
}

// Generated is a small file that a container gets besides what is mounted. It is
// best part of the container's root itself: ldconfig in a container that can be
// written to renames a new cache over the old one, which fails over a mount.
type Generated struct {
	Path    string // in the container
	Content []byte
}

// Needs are the libraries that an image's loaders have to find. They are data, so that
// a process may look into the image that knows nothing else.
type Needs struct {
	Facts   Facts // of the driver, for CompatLibcuda; zero: libcuda is not to be chosen
	Entries []ldcache.Entry
	Dirs    []string // of the container, in which they are
}

// Needs are what the driver gives for these capabilities.
func (d *Driver) Needs(c Capabilities) Needs {
	n := Needs{Facts: d.Facts(), Entries: d.Entries(c), Dirs: []string{LibDir}}
	if c&Compat32 != 0 {
		n.Dirs = append(n.Dirs, LibDir32)
	}
	return n
}

// Loaded says what was done so that programs find the driver's libraries.
type Loaded struct {
	Files    []Generated    // for the container: its /etc/ld.so.cache, or musl's path
	Compat   Compat         // which libcuda
	Cache    ldcache.Report `json:"-"` // what became of the image's cache
	Warnings []string
}

// Load makes the files by which the image's loader finds the driver's libraries:
// for glibc its ld.so.cache merged with them, for musl the list of directories. An
// image may have both. libcuda is chosen by CompatLibcuda. image is as there; what
// of it cannot be read costs a warning.
func Load(image fs.FS, n Needs) Loaded {
	var l Loaded
	if n.Facts.Driver != "" {
		l.Compat = CompatLibcuda(image, n.Facts)
	}
	entries := n.Entries
	if l.Compat.Use {
		entries = override(entries, l.Compat.Entries)
	}
	cache, err := readImage(image, "etc/ld.so.cache", ldcache.MaxSize)
	if err != nil {
		l.Warnings = append(l.Warnings, fmt.Sprintf("the image's /etc/ld.so.cache cannot be read and is replaced: %v", err))
		cache = nil
	}
	cache, l.Cache = ldcache.Merge(cache, entries)
	if l.Cache.Ignored != nil {
		l.Warnings = append(l.Warnings, fmt.Sprintf("the image's /etc/ld.so.cache is replaced: %v", l.Cache.Ignored))
	}
	l.Files = append(l.Files, Generated{"/etc/ld.so.cache", cache})
	if st, err := fs.Stat(image, "etc/ld.so.conf.d"); err == nil && st.IsDir() {
		// For an ldconfig that is run in the container, by a package manager say.
		text := strings.Join(n.Dirs, "\n") + "\n"
		if l.Compat.Use {
			text = "/" + CompatDir + "\n" + text
		}
		l.Files = append(l.Files, Generated{"/etc/ld.so.conf.d/00-gangway.conf", []byte(text)})
	}
	if path, text, ok := muslPath(image, n.Dirs); ok {
		l.Files = append(l.Files, Generated{path, []byte(text)})
		l.Warnings = append(l.Warnings, "the image's C library is musl, the driver's libraries are for glibc: without a compatibility library they cannot be loaded")
	}
	return l
}

// override puts the image's libraries in the place of the driver's of the same name
// before ".so", under all of its names: two libcudas in one process do not work.
func override(entries, images []ldcache.Entry) []ldcache.Entry {
	kept := slices.Clone(images)
	for _, e := range entries {
		base, version, _ := strings.Cut(e.Name, ".so")
		i := slices.IndexFunc(images, func(f ldcache.Entry) bool { return strings.HasPrefix(f.Name, base+".so") && f.Flags == e.Flags })
		if i < 0 {
			kept = append(kept, e)
		} else if version == "" { // for programs that ask without a version
			e.Path = images[i].Path
			kept = append(kept, e)
		}
	}
	return kept
}

// readImage reads a file of the image; none is no error.
func readImage(image fs.FS, name string, limit int64) ([]byte, error) {
	f, err := openRegular(image, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAll(f, limit)
}

// muslPath returns the file that tells musl's loader its directories, if the image
// has that loader: the image's own list, or the default, and then the driver's.
func muslPath(image fs.FS, dirs []string) (path, text string, ok bool) {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	loader := "ld-musl-" + arch
	if _, err := fs.Stat(image, "lib/"+loader+".so.1"); err != nil {
		return "", "", false
	}
	path = "etc/" + loader + ".path"
	text = "/lib\n/usr/local/lib\n/usr/lib"
	if own, err := readImage(image, path, maxText); err == nil && len(own) > 0 {
		text = strings.TrimRight(string(own), "\n")
	}
	return "/" + path, text + "\n" + strings.Join(dirs, "\n") + "\n", true
}
