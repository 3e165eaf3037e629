package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

func imageExport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export IMAGE",
		Short: "write an image of the store to one squashfs file",
		Long: `Write an image of the store to one squashfs file with all its layers merged, which
the kernel, unsquashfs, Enroot and Apptainer read; behind it stands the image's
configuration, which gangway run reads. The hashes of the image's files are
proved first; compressed blocks are copied as they are.`,
		Example: "gangway image export debian:12 -o debian.sqsh",
	}
	f := newImageFlags(env, cmd).withPlatform(cmd)
	var file string
	var force bool
	cmd.Flags().StringVarP(&file, "output", "o", "", "the file to write")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace the file if it is there")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" || file == "-" {
			return fault.Usage(errors.New("export: no file is named"), "gangway image export "+args[0]+" -o FILE.sqsh")
		}
		s, _, err := f.open()
		if err != nil {
			return err
		}
		i, err := f.find(s, args[0], false)
		if err != nil {
			return err
		}
		// A store that cannot be written knows no leases, and no removals.
		if lease, err := s.Lease(cmd.Context(), &i); err == nil {
			defer func() { _ = lease.Release() }()
		}
		// What is given away shall be what was pulled.
		r, err := s.Verify(cmd.Context(), []image.Image{i}, image.VerifyOptions{Keep: true, Quick: true})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", args[0], err)
		}
		opened, err := s.OpenImage(&i, squashfs.ReaderOptions{})
		if err != nil {
			return err
		}
		defer opened.Close()
		c, err := opened.Config()
		if err != nil {
			return err
		}
		trailer, err := c.Trailer()
		if err != nil {
			return err
		}
		w, err := beginFile(env, file, force, opened.WriterOptions())
		if err != nil {
			return err
		}
		defer w.Close()
		warn := warnings{env: env}
		if err := opened.Export(cmd.Context(), w.Writer, warn.add); err != nil {
			return addFault(file, fmt.Errorf("export %s: %w", args[0], err))
		}
		warn.end()
		return commitWith(cmd, w, file, trailer, out)
	}
	return cmd
}
