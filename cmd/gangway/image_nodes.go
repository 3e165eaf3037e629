package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// precacheNodes has nodes of the cluster fetch images, and says how far they are.
func precacheNodes(ctx context.Context, env *cli.Env, r *api.Precache, quiet, asJSON bool) error {
	if slices.Contains(r.Nodes, "all") {
		r.Nodes = nil
	}
	var err error
	if r.Nodes, err = expandAll(r.Nodes); err != nil {
		return err
	}
	return withCluster(env, func(c *api.Client) error {
		p := &nodeProgress{env: env, quiet: quiet || asJSON, terminal: env.Terminal(env.Stderr), at: map[string]api.Precached{}}
		err := c.Precache(ctx, r, func(e *api.Precached) bool {
			if asJSON {
				_ = printLine(env.Stdout, e)
			}
			p.take(e)
			return true
		})
		p.end()
		if !errors.Is(err, io.EOF) {
			return err
		}
		return p.result(asJSON)
	})
}

// nodeProgress is how far nodes are with images.
type nodeProgress struct {
	env             *cli.Env
	quiet, terminal bool
	at              map[string]api.Precached // by node and image
	said            time.Time
	drawn           bool
}

func (p *nodeProgress) take(e *api.Precached) {
	p.at[e.Node+"\x00"+e.Image] = *e
	every := 5 * time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	now := p.env.Now()
	if p.quiet || now.Sub(p.said) < every {
		return
	}
	p.said = now
	if p.terminal {
		fmt.Fprintf(p.env.Stderr, "\r\033[K%s", p.line())
		p.drawn = true
		return
	}
	fmt.Fprintf(p.env.Stderr, "%s: %s\n", p.env.Program, p.line())
}

// line is all of it in one: 3 of 4 nodes done, 1.2 GB of 4.8 GB.
func (p *nodeProgress) line() string {
	var done, failed int
	var bytes, total int64
	for _, e := range p.at {
		switch {
		case e.Fault != nil:
			failed++
		case e.Done:
			done++
		}
		bytes, total = bytes+e.Bytes, total+max(e.Bytes, e.Total)
	}
	text := fmt.Sprintf("%d of %d done", done, len(p.at))
	if failed > 0 {
		text += fmt.Sprintf(", %d failed", failed)
	}
	if total > 0 {
		text += fmt.Sprintf(", %s of %s", image.FormatBytes(bytes), image.FormatBytes(total))
	}
	return text
}

func (p *nodeProgress) end() {
	if p.drawn {
		fmt.Fprint(p.env.Stderr, "\r\033[K")
	}
}

// result says which nodes have the images, and groups the failures of the others.
func (p *nodeProgress) result(asJSON bool) error {
	good, bad := map[string][]string{}, map[string][]string{}
	cause := map[string]*api.Precached{}
	for _, key := range slices.Sorted(maps.Keys(p.at)) {
		e := p.at[key]
		if e.Fault == nil {
			good[e.Image+"\x00"+e.Digest] = append(good[e.Image+"\x00"+e.Digest], e.Node)
			continue
		}
		what := e.Image + "\x00" + strings.ReplaceAll(e.Fault.What, e.Node, "NODE")
		bad[what], cause[what] = append(bad[what], e.Node), &e
	}
	for _, key := range slices.Sorted(maps.Keys(good)) {
		name, digest, _ := strings.Cut(key, "\x00")
		slurm.SortHosts(good[key])
		if !asJSON {
			fmt.Fprintf(p.env.Stdout, "%s  %s  %s\n", name, oci.Digest(digest).Short(), slurm.Fold(good[key]))
		}
	}
	var failed error
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		e := cause[key]
		slurm.SortHosts(bad[key])
		f := &fault.Error{
			What:  fmt.Errorf("precache %s: %d of %d: %s (%s)", e.Image, len(bad[key]), len(p.at), e.Fault.What, slurm.Fold(bad[key])),
			Cause: e.Fault.Cause, Hint: e.Fault.Hint, Code: cmp.Or(e.Fault.Code, fault.CodeFailed),
		}
		if failed == nil {
			failed = f
			continue
		}
		_, _ = io.WriteString(p.env.Stderr, fault.Text(p.env.Program, f, p.env.Color(p.env.Stderr)))
	}
	return failed
}

// imagesOfNodes is what "gangway image ls --nodes" prints.
type imagesOfNodes struct {
	Images []nodesOfImage `json:"images"`
}

type nodesOfImage struct {
	Digest string   `json:"digest"`
	Name   string   `json:"name"` // short, for people
	Nodes  []string `json:"nodes"`
}

// Text implements cli.Result.
func (l imagesOfNodes) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tDIGEST\tCOUNT\tNODES")
	for _, i := range l.Images {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", i.Name, oci.Digest(i.Digest).Short(), len(i.Nodes), slurm.Fold(i.Nodes))
	}
	return t.Flush()
}

// listNodeImages asks which images the nodes have; wanted are the nodes, all of them if
// it has "all".
func listNodeImages(ctx context.Context, env *cli.Env, out *cli.Reporter, wanted []string) error {
	all := slices.Contains(wanted, "all")
	list, err := expandAll(wanted)
	if err != nil {
		return err
	}
	return withCluster(env, func(c *api.Client) error {
		page, err := c.Images(ctx)
		if err != nil {
			return err
		}
		on := map[string][]string{}
		for _, n := range page.Items {
			if !all && !slices.Contains(list, n.Node) {
				continue
			}
			for _, image := range n.Images {
				on[image] = append(on[image], n.Node)
			}
		}
		result := imagesOfNodes{Images: []nodesOfImage{}}
		for _, image := range slices.Sorted(maps.Keys(on)) {
			slurm.SortHosts(on[image])
			at := max(0, strings.LastIndex(image, "@"))
			result.Images = append(result.Images, nodesOfImage{strings.TrimPrefix(image[at:], "@"), familiar(image[:at]), on[image]})
		}
		return out.Print(result)
	})
}
