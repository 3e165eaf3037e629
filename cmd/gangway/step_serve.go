package main

import (
	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/squashfs"
)

// serveVerb is the hidden verb that reads and serves an image for a container of root's.
const serveVerb = "step-serve"

func stepServe(*cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: serveVerb, Short: "serve an image for a container of root's", Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return step.ServeConfined(cmd.Context(), func(f *image.Files) (*image.Opened, error) {
				cache, err := squashfs.NewCache(blockCache)
				if err != nil {
					return nil, err
				}
				return f.Open(squashfs.ReaderOptions{Cache: cache}) // for as long as this process
			})
		},
	}
}
