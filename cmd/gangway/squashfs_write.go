package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

func squashfsCreate(env *cli.Env) *cobra.Command {
	var f writeFlags
	var o squashfs.DirOptions
	cmd := &cobra.Command{
		Use:   "create DIR FILE",
		Short: "make an image of a directory",
		Long: `Make an image of a directory, with owners, hard links, devices and extended
attributes as they are. FILE appears when it is complete. The same directory
gives the same bytes.`,
		Example: `gangway squashfs create ./rootfs image.sqsh
gangway squashfs create --level 19 --block-size 1M ./data data.sqsh`,
	}
	f.register(cmd)
	cmd.Flags().BoolVarP(&o.OneFileSystem, "one-file-system", "x", false, "leave out what is mounted below DIR")
	cmd.Flags().BoolVar(&o.NoXattrs, "no-xattrs", false, "leave out extended attributes")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		w, err := f.begin(env, args[1])
		if err != nil {
			return err
		}
		defer w.Close()
		o.Warn = func(path string, err error) { fmt.Fprintf(env.Stderr, "%s: warning: %s: %v\n", env.Program, path, err) }
		if err := w.AddDir(cmd.Context(), args[0], o); err != nil {
			return writeFault(args[1], err)
		}
		return commit(w, args[1], out)
	}
	return cmd
}

func squashfsConvert(env *cli.Env) *cobra.Command {
	var f writeFlags
	cmd := &cobra.Command{
		Use:   "convert IMAGE FILE",
		Short: "write an image anew, with other or the same compression",
		Long: `Write an image anew. Compressed blocks are copied as they are where compression
and block size stay the same, else compressed again. What no file uses is left out.`,
		Example: `gangway squashfs convert old-lzo.sqsh new.sqsh
gangway squashfs convert --compression gzip image.sqsh for-an-old-kernel.sqsh`,
	}
	f.register(cmd)
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		src, err := openImage(args[0])
		if err != nil {
			return err
		}
		defer src.Close()
		w, err := f.begin(env, args[1])
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.AddImage(cmd.Context(), src, "."); err != nil {
			if errors.Is(err, squashfs.ErrCorrupt) {
				return imageFault(args[0], fmt.Errorf("convert %s: %w", args[0], err))
			}
			return writeFault(args[1], err)
		}
		return commit(w, args[1], out)
	}
	return cmd
}

// commit finishes an image and reports it.
func commit(w *squashfs.FileWriter, path string, out *cli.Reporter) error {
	info, err := w.Commit(nil)
	if err != nil {
		return writeFault(path, err)
	}
	return out.Print(newWritten(path, info))
}

// writeFault says what to do about an image that could not be written.
func writeFault(path string, err error) error {
	f := &fault.Error{What: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		f.Cause = "no space is left in " + filepath.Dir(path)
		f.Hint = "free space there, or write to another file system; nothing was left behind"
	case errors.Is(err, squashfs.ErrTooManyIDs):
		f.Hint = "the format has room for 65,535 owners; change the owner of some files"
	case errors.Is(err, fs.ErrPermission):
		f.Hint = "read the directory as a user that may, or leave the file out"
	default:
		return err
	}
	return f
}

// Text implements cli.Result.
func (w written) Text(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s: %d bytes, %d inodes, %s, blocks of %d KiB\n",
		w.File, w.Bytes, w.Inodes, w.Compression, w.BlockSize>>10)
	return err
}
