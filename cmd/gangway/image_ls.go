package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/service"
	"github.com/gangway-hpc/gangway/internal/cli"
)

// imageList is what "image ls" prints.
type imageList struct {
	Images []listedImage `json:"images"`
	node   bool          // there is a node's store, too
	now    time.Time
}

type listedImage struct {
	image.Image
	Name  string    `json:"name"` // short, for people
	Bytes int64     `json:"bytes"`
	Own   int64     `json:"own_bytes"`
	Used  time.Time `json:"used"`
	Node  bool      `json:"node_store,omitempty"` // it is in the node's store
}

// add adds what the node's store lists.
func (l *imageList) add(ctx context.Context, node *service.Client) error {
	l.node = true
	r, err := node.Admin(ctx, &service.Admin{Do: service.AdminList})
	if err != nil {
		return err
	}
	for _, i := range r.Images {
		l.Images = append(l.Images, listedImage{Image: i.Image, Name: familiar(i.Reference), Used: i.Used, Bytes: i.Size.Bytes, Own: i.Size.Own, Node: true})
	}
	return nil
}

// Text implements cli.Result.
func (l imageList) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "IMAGE\tDIGEST\tPLATFORM\tLAYERS\tSIZE\tOWN\tUSED\tPINNED"
	if l.node {
		head += "\tSTORE"
	}
	fmt.Fprintln(t, head)
	for _, i := range l.Images {
		pin := ""
		if i.Pinned {
			pin = "yes"
		}
		if l.node {
			pin += "\t" + map[bool]string{true: "node", false: "own"}[i.Node]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", i.Name, i.Manifest.Short(), i.Platform, len(i.Layers),
			image.FormatBytes(i.Bytes), image.FormatBytes(i.Own), ago(l.now.Sub(i.Used)), pin)
	}
	return t.Flush()
}

// ago is a length of time for people.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return plural(int(d.Minutes()), "minute") + " ago"
	case d < 48*time.Hour:
		return plural(int(d.Hours()), "hour") + " ago"
	}
	return plural(int(d.Hours()/24), "day") + " ago"
}

func imageLs(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "ls",
		Short:      "list the images of the store",
		Long:       "List the images of the store. SIZE is what an image takes on disk, OWN is the part of\nit that no other image shares. Where users of the node share a\nstore, its images are listed too that this user was handed, or that are anybody's; all, to\nroot. With --nodes: which images the nodes of the cluster have.",
		Example:    "gangway image ls\ngangway image ls --json\ngangway image ls --nodes all",
		SuggestFor: []string{"list"},
	}
	f := newImageFlags(env, cmd)
	out := cli.NewReporter(env, cmd)
	var nodes []string
	cmd.Flags().StringArrayVar(&nodes, "nodes", nil, "on these `nodes` of the cluster, as n[1-4], or all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if nodes != nil {
			return listNodeImages(cmd.Context(), env, out, nodes)
		}
		s, c, err := f.open()
		if err != nil {
			return err
		}
		node, err := f.nodeStore(&c)
		if err != nil {
			return err
		}
		images, err := s.List()
		list := imageList{Images: []listedImage{}, now: env.Now()}
		sizes := s.Sizes(images)
		for n, i := range images {
			list.Images = append(list.Images, listedImage{
				Image: i, Name: familiar(i.Reference), Used: i.Used, Bytes: sizes[n].Bytes, Own: sizes[n].Own,
			})
		}
		if node != nil {
			err = errors.Join(err, list.add(cmd.Context(), node))
		}
		return cmp.Or(out.Print(list), err)
	}
	return cmd
}

// inspected is what "image inspect" prints.
type inspected struct {
	image.Image
	Annotations map[string]string `json:"annotations,omitempty"`
	Env         []string          `json:"env"`
	Entrypoint  []string          `json:"entrypoint"`
	Cmd         []string          `json:"cmd"`
	WorkingDir  string            `json:"working_dir"`
	User        string            `json:"user"`
	StopSignal  string            `json:"stop_signal"`
	Labels      map[string]string `json:"labels"`
	Created     time.Time         `json:"created"`
	Files       int               `json:"files"`
	Index       string            `json:"index_file"`
	LayerFiles  []string          `json:"layer_files"`
}

// Text implements cli.Result.
func (i inspected) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, quoteName(value))
		}
	}
	line("image", i.Reference)
	line("platform", i.Platform)
	line("digest", string(i.Digest))
	if i.Manifest != i.Digest {
		line("manifest", string(i.Manifest))
	}
	line("config", string(i.Config))
	if !i.Created.IsZero() {
		line("created", i.Created.UTC().Format(time.RFC3339))
	}
	line("pulled", i.Pulled.Format(time.RFC3339))
	line("files", fmt.Sprint(i.Files))
	line("entrypoint", strings.Join(i.Entrypoint, " "))
	line("command", strings.Join(i.Cmd, " "))
	line("directory", i.WorkingDir)
	line("user", i.User)
	line("stop signal", i.StopSignal)
	for _, e := range i.Env {
		line("env", e)
	}
	for n, l := range i.Layers {
		line(fmt.Sprintf("layer %d", n+1), fmt.Sprintf("%s  %s", l.Digest, image.FormatBytes(l.Size)))
	}
	return t.Flush()
}

func imageInspect(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "print what an image of the store is",
		Long: `Print what an image of the store is: its digests, what its configuration says, and
its layers. IMAGE is a reference, the end of one as in torch:1, or the begin of a digest.`,
		Example:    "gangway image inspect debian:12\ngangway image inspect --json 3c29984ad154",
		SuggestFor: []string{"info", "show"},
	}
	f := newImageFlags(env, cmd).withPlatform(cmd)
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		s, _, err := f.open()
		if err != nil {
			return err
		}
		i, err := f.find(s, args[0], false)
		if err != nil {
			return err
		}
		v, err := inspect(s, &i)
		if err != nil {
			return err
		}
		return out.Print(v)
	}
	return cmd
}

func inspect(s *image.Store, i *image.Image) (inspected, error) {
	d, err := s.Describe(i)
	if err != nil {
		return inspected{}, err
	}
	v := inspected{
		Image: *i, Annotations: d.Manifest.Annotations, Env: d.Config.Env, Entrypoint: d.Config.Entrypoint, Cmd: d.Config.Cmd,
		WorkingDir: d.Config.WorkingDir, User: d.Config.User, StopSignal: d.Config.StopSignal, Labels: d.Config.Labels,
		Created: d.Config.Created, Files: d.Files, Index: s.IndexPath(i.Manifest),
	}
	for _, l := range i.Layers {
		v.LayerFiles = append(v.LayerFiles, s.LayerPath(l.Digest))
	}
	return v, nil
}
