package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// squashfsVerb is the group of verbs for image files of their own, without any
// store or registry.
func squashfsVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "squashfs",
		Short:      "make, read, convert and check squashfs files",
		Long:       "Make, read, convert and check squashfs files, without root and without squashfs-tools.",
		SuggestFor: []string{"mksquashfs", "unsquashfs", "sqsh"},
		Example: `gangway squashfs create ./rootfs image.sqsh
gangway squashfs ls -l image.sqsh /etc
gangway squashfs cat image.sqsh /etc/os-release
gangway squashfs check image.sqsh`,
	}
	return cli.Group(env, cmd, squashfsCreate, squashfsConvert, squashfsInfo, squashfsLs, squashfsCat, squashfsCheck)
}

// openImage opens a squashfs file for reading and explains what cannot be.
func openImage(path string) (*squashfs.Reader, error) {
	r, err := squashfs.Open(path, squashfs.ReaderOptions{})
	hint := ""
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, fs.ErrNotExist):
		hint = "check the path of the image file"
	case errors.Is(err, fs.ErrPermission):
		hint = "read it as a user that may"
	case errors.Is(err, syscall.EISDIR):
		hint = "it is a directory; to make an image of it: gangway squashfs create DIR FILE"
	case errors.Is(err, syscall.ESPIPE):
		hint = "an image is read here and there; save what the pipe gives to a file first"
	default:
		return nil, imageFault(path, err)
	}
	return nil, &fault.Error{What: err, Hint: hint}
}

// withImage runs f with an image that is closed afterwards.
func withImage(file string, f func(*squashfs.Reader) error) error {
	r, err := openImage(file)
	if err != nil {
		return err
	}
	defer r.Close()
	return f(r)
}

// imageFault says what to do about an image that cannot be read.
func imageFault(path string, err error) error {
	f := &fault.Error{What: err}
	switch {
	case errors.Is(err, squashfs.ErrNotSquashfs):
		f.Hint = "a squashfs file begins with \"hsqs\"; to make one of a directory: gangway squashfs create DIR FILE"
	case errors.Is(err, squashfs.ErrCorrupt):
		f.Hint = "fetch or make the file again; for all that is wrong with it: gangway squashfs check " + path
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		f.Hint = "ls lists what there is: gangway squashfs ls -l " + path + " [PATH]"
	default:
		return err
	}
	return f
}

// writeFlags are the flags of the verbs that write an image.
type writeFlags struct {
	compression string
	level       int
	blockSize   string
	force       bool
	recompress  bool
}

func (f *writeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVarP(&f.compression, "compression", "c", "zstd", "zstd, gzip, lz4 or none")
	fl.IntVar(&f.level, "level", 0, "1-22 for zstd, 1-9 for gzip, 1 for lz4; 0 is the default, the fastest but for gzip")
	fl.StringVarP(&f.blockSize, "block-size", "b", "128K", "block size, a power of two from 4K to 1M")
	fl.BoolVarP(&f.force, "force", "f", false, "replace FILE if it is there")
}

func (f *writeFlags) options() (squashfs.WriterOptions, error) {
	c, err := squashfs.ParseCompression(f.compression)
	if err != nil {
		return squashfs.WriterOptions{}, fault.Usage(err, "--compression zstd is the default")
	}
	size, err := parseBlockSize(f.blockSize)
	if err != nil {
		return squashfs.WriterOptions{}, fault.Usage(err, "--block-size 128K is the default")
	}
	return squashfs.WriterOptions{Compression: c, Level: f.level, BlockSize: size, Recompress: f.recompress}, nil
}

// parseBlockSize reads "4096", "128K" or "1M".
func parseBlockSize(s string) (int, error) {
	digits, unit := s, 1
	if n := len(s) - 1; n > 0 {
		switch s[n] {
		case 'k', 'K':
			digits, unit = s[:n], 1<<10
		case 'm', 'M':
			digits, unit = s[:n], 1<<20
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n <= 0 || n > 1<<20/unit {
		return 0, fmt.Errorf("block size %q: want a power of two from 4K to 1M", s)
	}
	return n * unit, nil
}

// begin begins the image that a verb writes.
func (f *writeFlags) begin(env *cli.Env, file string) (*squashfs.FileWriter, error) {
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	return beginFile(env, file, f.force, o)
}

// beginFile begins an image, in the place of a file that is there with force only.
func beginFile(env *cli.Env, file string, force bool, o squashfs.WriterOptions) (*squashfs.FileWriter, error) {
	if env.Getenv("GOGC") == "" {
		// A Writer holds hardly any pointers, so a collection costs a millisecond:
		// better some more of them than twice the memory.
		debug.SetGCPercent(15)
	}
	create := squashfs.CreateNew
	if force {
		create = squashfs.Create
		if st, err := os.Lstat(file); err == nil && !st.Mode().IsRegular() {
			return nil, fault.Usage(fmt.Errorf("create %s: it is there and is no regular file", file), "give another name")
		}
	}
	w, err := create(file, o)
	hint := ""
	switch {
	case errors.Is(err, fs.ErrInvalid), file == "":
		return nil, fault.Usage(err, "gangway squashfs create --help lists what can be given")
	case errors.Is(err, fs.ErrExist):
		hint = existsHint
	case errors.Is(err, fs.ErrNotExist):
		hint = "make the directory first: mkdir -p " + filepath.Dir(file)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		hint = "give a FILE in a directory that you may write to"
	default:
		return w, err
	}
	return nil, &fault.Error{What: err, Hint: hint}
}

const existsHint = "give --force to replace it, or another name"

// written is what the verbs that write an image report.
type written struct {
	File        string `json:"file"`
	Bytes       int64  `json:"bytes"`
	Inodes      uint32 `json:"inodes"`
	Compression string `json:"compression"`
	BlockSize   uint32 `json:"block_size"`
}

func newWritten(path string, i squashfs.Info) written {
	return written{path, i.Size, i.Superblock.Inodes, compressionOf(&i.Superblock), i.Superblock.BlockSize}
}

// compressionOf names an image's compression. Uncompressed ones say gzip, and that
// nothing is compressed by it.
func compressionOf(sb *squashfs.Superblock) string {
	const raw = squashfs.FlagRawInodes | squashfs.FlagRawData | squashfs.FlagRawFragments
	if sb.Flags&raw == raw {
		return squashfs.Uncompressed.String()
	}
	return sb.Compression.String()
}

// inImage turns a path as people type it into one of io/fs.
func inImage(name string) string {
	if name = path.Clean("/" + name)[1:]; name == "" {
		return "."
	}
	return name
}
