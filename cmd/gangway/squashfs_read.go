package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// imageInfo is what "squashfs info" prints.
type imageInfo struct {
	File        string    `json:"file"`
	Bytes       uint64    `json:"bytes"`
	Trailer     int64     `json:"trailer_bytes"`
	Compression string    `json:"compression"`
	BlockSize   uint32    `json:"block_size"`
	Inodes      uint32    `json:"inodes"`
	Fragments   uint32    `json:"fragments"`
	IDs         uint16    `json:"ids"`
	Made        time.Time `json:"made"`
	Exportable  bool      `json:"exportable"`
	Xattrs      bool      `json:"xattrs"`
}

// Text implements cli.Result.
func (i imageInfo) Text(w io.Writer) error {
	yes := map[bool]string{true: "yes", false: "no"}
	_, err := fmt.Fprintf(w, `file         %s
bytes        %d, and %d of a trailer
compression  %s, blocks of %d KiB
inodes       %d
fragments    %d
ids          %d
made         %s
by number    %s
xattrs       %s
`, i.File, i.Bytes, i.Trailer, i.Compression, i.BlockSize>>10, i.Inodes, i.Fragments, i.IDs,
		i.Made.Format(time.RFC3339), yes[i.Exportable], yes[i.Xattrs])
	return err
}

func squashfsInfo(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "info FILE",
		Short:   "print an image's superblock",
		Example: "gangway squashfs info image.sqsh\ngangway squashfs info --json image.sqsh",
	}
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return withImage(args[0], func(r *squashfs.Reader) error {
			return out.Print(newImageInfo(args[0], r))
		})
	}
	return cmd
}

func newImageInfo(file string, r *squashfs.Reader) imageInfo {
	sb := r.Superblock()
	info := imageInfo{
		File: file, Bytes: sb.BytesUsed, Compression: compressionOf(&sb), BlockSize: sb.BlockSize,
		Inodes: sb.Inodes, Fragments: sb.Fragments, IDs: sb.IDs, Made: sb.Made(),
		Exportable: sb.Flags&squashfs.FlagExportable != 0, Xattrs: sb.Flags&squashfs.FlagNoXattrs == 0,
	}
	if t := r.Trailer(); t != nil {
		info.Trailer = t.Size()
	}
	return info
}

// listed is one line of "squashfs ls".
type listed struct {
	Path    string    `json:"path"`
	Bytes   []byte    `json:"path_base64,omitempty"` // of a path that is not UTF-8, which JSON cannot hold
	Mode    string    `json:"mode"`
	UID     uint32    `json:"uid"`
	GID     uint32    `json:"gid"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mtime"`
	Inode   uint32    `json:"inode"`
	Links   uint32    `json:"links"`
	Target  string    `json:"target,omitempty"`
	long    bool
}

// Text implements cli.Result. Control characters in names are escaped, as a
// terminal would act upon them.
func (l listed) Text(w io.Writer) error {
	name := quoteName(l.Path)
	if !l.long {
		_, err := fmt.Fprintln(w, name)
		return err
	}
	if l.Target != "" {
		name += " -> " + quoteName(l.Target)
	}
	_, err := fmt.Fprintf(w, "%s %3d %6d %6d %11d %s %s\n",
		l.Mode, l.Links, l.UID, l.GID, l.Size, l.ModTime.Format("2006-01-02 15:04"), name)
	return err
}

func squashfsLs(env *cli.Env) *cobra.Command {
	var long, recursive bool
	cmd := &cobra.Command{
		Use:     "ls FILE [PATH]",
		Short:   "list what is in an image",
		Example: "gangway squashfs ls -lR image.sqsh\ngangway squashfs ls --json image.sqsh /etc",
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print mode, links, owner, size and time")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "list what is below directories too")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		start := "."
		if len(args) > 1 {
			start = inImage(args[1])
		}
		return withImage(args[0], func(r *squashfs.Reader) error {
			err := fs.WalkDir(r.FS(), start, func(name string, d fs.DirEntry, err error) error {
				if err = cmp.Or(err, cmd.Context().Err()); err != nil || name == start && d.IsDir() {
					return err
				}
				l, err := listEntry(r, name, d, long)
				if err == nil {
					err = out.Record(l)
				}
				if err == nil && d.IsDir() && !recursive {
					err = fs.SkipDir
				}
				return err
			})
			if err != nil {
				return imageFault(args[0], fmt.Errorf("list %s: %w", args[0], err))
			}
			return nil
		})
	}
	return cmd
}

func listEntry(r *squashfs.Reader, name string, d fs.DirEntry, long bool) (listed, error) {
	info, err := d.Info()
	if err != nil {
		return listed{}, err
	}
	i := info.Sys().(*squashfs.Inode)
	l := listed{
		Path: name, Mode: lsMode(i), UID: i.UID, GID: i.GID, Size: info.Size(),
		ModTime: info.ModTime(), Inode: i.Number, Links: i.Links, long: long,
	}
	if !utf8.ValidString(name) {
		l.Bytes = []byte(name)
	}
	if i.Type == squashfs.TypeSymlink {
		l.Target, err = r.ReadLink(*i)
	}
	return l, err
}

// lsMode shows type and permissions as ls(1) does, "drwxr-xr-t".
func lsMode(i *squashfs.Inode) string {
	const types = "?d-lbcps"
	b := []byte{types[min(int(i.Type), len(types)-1)]}
	for shift := 6; shift >= 0; shift -= 3 {
		for bit, c := range []byte("rwx") {
			if i.Perm>>shift&(4>>bit) == 0 {
				c = '-'
			}
			b = append(b, c)
		}
	}
	special := func(at int, on bool, c byte) {
		if on && b[at] == '-' {
			c -= 'a' - 'A' // without the right to execute
		}
		if on {
			b[at] = c
		}
	}
	special(3, i.Perm&0o4000 != 0, 's')
	special(6, i.Perm&0o2000 != 0, 's')
	special(9, i.Perm&0o1000 != 0, 't')
	return string(b)
}

// quoteName shows a name as it is, or quoted where it has bytes that do not print.
func quoteName(name string) string {
	if q := fmt.Sprintf("%q", name); strings.Contains(q, `\`) {
		return q
	}
	return name
}

func squashfsCat(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cat FILE PATH...",
		Short:   "print files of an image",
		Example: "gangway squashfs cat image.sqsh /etc/os-release",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := contextWriter{cmd.Context(), env.Stdout}
		return withImage(args[0], func(r *squashfs.Reader) error {
			for _, name := range args[1:] {
				if err := catFile(out, r, inImage(name)); err != nil {
					return imageFault(args[0], fmt.Errorf("print %s of %s: %w", path.Clean("/"+name), args[0], err))
				}
			}
			return nil
		})
	}
	return cmd
}

// contextWriter is a Writer that ends with its context.
type contextWriter struct {
	ctx context.Context // of the one run of the verb
	w   io.Writer
}

func (w contextWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}

func catFile(w io.Writer, r *squashfs.Reader, name string) error {
	f, err := r.FS().Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", fs.ErrInvalid)
	}
	_, err = io.Copy(w, f)
	return err
}

// checked is what "squashfs check" prints of a good image.
type checked struct {
	File   string `json:"file"`
	Inodes uint32 `json:"inodes"`
	Data   bool   `json:"data_read"`
}

// Text implements cli.Result.
func (c checked) Text(w io.Writer) error {
	data := "all data read"
	if !c.Data {
		data = "data not read"
	}
	_, err := fmt.Fprintf(w, "%s: good; %d inodes, %s\n", c.File, c.Inodes, data)
	return err
}

func squashfsCheck(env *cli.Env) *cobra.Command {
	var o squashfs.CheckOptions
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "prove that an image keeps the rules of its format",
		Long: `Read every table, directory, inode and block of an image and prove that it keeps
the rules of its format. Squashfs has no checksums: a changed byte within stored
data is not found.`,
		Example: "gangway squashfs check image.sqsh\ngangway squashfs check --skip-data image.sqsh",
	}
	cmd.Flags().BoolVar(&o.SkipData, "skip-data", false, "check the tables only")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withImage(args[0], func(r *squashfs.Reader) error {
			if err := squashfs.Check(cmd.Context(), r, o); err != nil {
				return &fault.Error{What: fmt.Errorf("check %s: %w", args[0], err), Hint: "fetch or make the file again"}
			}
			return out.Print(checked{args[0], r.Superblock().Inodes, !o.SkipData})
		})
	}
	return cmd
}
