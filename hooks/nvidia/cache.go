package nvidia

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// maxCache is how much of a kept discovery is read; one of 8 GPUs has 10 KB.
const maxCache = 1 << 20

// Cached is Discover, whose result it keeps in dir: for the driver's version, the
// boot, the device nodes and the options, so that a run after the first costs less
// than a millisecond. It also returns the host's path of a file with the text
// Driver.Params, for Spec ("" if there is no such text).
//
// dir is made if need be (mode 0700) and must belong to the user or root, and be
// writable by nobody else: what it holds decides what is mounted. A directory that
// is not so is an error. What is kept and does not fit the machine any more (a
// library was replaced, an instance was made) is found again. Nothing is removed:
// the files are few and dir is best on a file system that ends with the boot, as
// $XDG_RUNTIME_DIR is. Several processes may use one dir at once.
func Cached(ctx context.Context, dir string, o Options) (d *Driver, params string, err error) {
	o = o.resolved()
	if err := private(dir); err != nil {
		return nil, "", fmt.Errorf("use %s for what is known of the GPUs: %w", dir, err)
	}
	key := o.key()
	name := filepath.Join(dir, "nvidia-"+key+".driver")
	params = filepath.Join(dir, "nvidia-"+key+".params")
	if d := load(name); d != nil && (d.Params == "" || exists(params)) {
		return d, d.paramsAt(params), nil
	}
	if d, err = Discover(ctx, o); err != nil {
		return nil, "", err
	}
	if slices.ContainsFunc(d.GPUs, func(g GPU) bool { return g.Bus != "" && g.UUID == "" }) {
		// A GPU that nobody has used since the boot, whose UUID comes with the first use.
		return d, "", nil
	}
	write := func(name string, text []byte) error {
		return fsx.WriteFile(ctx, name, fsx.Options{}, func(f *os.File) error {
			_, err := f.Write(text)
			return err
		})
	}
	err = write(params, []byte(d.Params))
	if err == nil {
		err = write(name, encode(d, d.stamp()))
	}
	if err != nil {
		return nil, "", fmt.Errorf("keep what is known of the GPUs: %w", err)
	}
	return d, d.paramsAt(params), nil
}

// paramsAt is name, if the driver has parameters.
func (d *Driver) paramsAt(name string) string {
	if d.Params == "" {
		return ""
	}
	return name
}

// ErrNotPrivate says that others could change what a directory holds.
var ErrNotPrivate = errors.New("others may write there")

// private makes dir and checks that nobody else can write to it.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	uid := os.Geteuid()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != uid {
		return fmt.Errorf("mode %o, owner %d: %w", st.Mode&0o7777, st.Uid, ErrNotPrivate)
	}
	return nil
}

// key names the state of the machine that a discovery depends on. It is read anew
// for every container: two small files, a few directories, and a stat a node.
func (o Options) key() string {
	b := []byte(codecMagic)
	put := func(values ...string) {
		for _, v := range values {
			b = append(append(b, v...), 0)
		}
		b = append(b, '\n')
	}
	version, _ := readText(o.Proc, "driver/nvidia/version")
	boot, _ := readText(o.Proc, "sys/kernel/random/boot_id")
	put(version, boot, o.Root, o.Proc, o.Sys, o.Dev)
	put(o.Roots...)
	for _, m := range o.MIGs {
		put(m.UUID, m.GPU, strconv.Itoa(m.GI), strconv.Itoa(m.CI))
	}
	put(dirNames(o.Proc, "driver/nvidia/gpus")...)
	for _, gpu := range dirNames(o.Proc, "driver/nvidia/capabilities") {
		mig := filepath.Join(o.Proc, "driver/nvidia/capabilities", gpu, "mig")
		for _, gi := range instances("gi", mig) {
			put(gpu, strconv.Itoa(gi), fmt.Sprint(instances("ci", filepath.Join(mig, "gi"+strconv.Itoa(gi)))))
		}
	}
	for _, f := range hostFiles {
		put(f.Path, strconv.FormatBool(exists(o.Root, f.Path)))
	}
	for _, dir := range []string{"", "nvidia-caps", imexDir} {
		for _, name := range dirNames(o.Dev, dir) {
			if dir == "" && !strings.HasPrefix(name, "nvidia") && name != "dxg" && name != "gdrdrv" {
				continue
			}
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(o.Dev, dir, name), &st); err == nil {
				put(dir, name, strconv.FormatUint(uint64(st.Mode), 8), strconv.FormatUint(st.Rdev, 16), strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid)))
			}
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// load reads a kept discovery, or returns nil if there is none that fits.
func load(name string) *Driver {
	if st, err := os.Stat(name); err != nil || st.Size() > maxCache {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	d, stamp, ok := decode(string(text))
	if !ok || d.stamp() != stamp {
		return nil
	}
	return d
}

// stamp changes when a file that would be mounted is replaced or removed: then the
// directory changes that it is in. One that is written to in place stays mountable.
func (d *Driver) stamp() string {
	var b []byte
	seen := map[string]bool{}
	add := func(path string) {
		dir := filepath.Dir(path)
		if seen[dir] {
			return
		}
		seen[dir] = true
		var st unix.Stat_t
		_ = unix.Stat(dir, &st) // a directory that is gone is a change as well
		b = binary.LittleEndian.AppendUint64(b, st.Ino)
		b = binary.LittleEndian.AppendUint64(b, uint64(st.Ctim.Nano()))
	}
	for _, l := range d.Libraries {
		add(l.Host)
	}
	for _, f := range d.Files {
		if !f.Write { // daemons change their directories; the key looks for their sockets
			add(f.Host)
		}
	}
	return string(b)
}
