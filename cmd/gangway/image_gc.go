package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/service"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// collected is what rm and gc print.
type collected struct {
	image.GCReport
	dryRun bool
}

// Text implements cli.Result.
func (c collected) Text(w io.Writer) error {
	removed, freed := "removed", "freed"
	if c.dryRun {
		removed, freed = "would remove", "would free"
	}
	for _, name := range c.Images {
		if _, err := fmt.Fprintf(w, "%s %s\n", removed, familiar(name)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s %s in %s, %s stay\n", freed, image.FormatBytes(c.Freed), plural(c.Files, "file"), image.FormatBytes(c.Kept))
	return err
}

func imageRm(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "remove images from the store",
		Long: `Remove images from the store, and the layers that no other image has. Containers
that run go on: what they have open stays on disk until they end.`,
		Example:    "gangway image rm debian:12",
		SuggestFor: []string{"remove", "delete", "rmi"},
	}
	f := newImageFlags(env, cmd).withPlatform(cmd)
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if r, err := f.atNode(cmd.Context(), &service.Admin{Do: service.AdminRemove}, args, true); r != nil || err != nil {
			return printNode(out, err, func() cli.Result { return collected{r.GC, false} })
		}
		s, images, err := f.openImages(args, true)
		if err != nil {
			return err
		}
		all := collected{GCReport: image.GCReport{Images: []string{}}}
		for _, i := range images {
			r, err := s.Remove(cmd.Context(), &i)
			if err != nil && len(all.Images) > 0 {
				return errors.Join(err, out.Print(all)) // what is gone is gone
			}
			if err != nil {
				return err
			}
			all.Images = append(all.Images, r.Images...)
			all.Files, all.Freed, all.Kept = all.Files+r.Files, all.Freed+r.Freed, r.Kept
		}
		return out.Print(all)
	}
	return cmd
}

func imagePin(env *cli.Env) *cobra.Command {
	return pinVerb(env, true, &cobra.Command{
		Use:   "pin IMAGE...",
		Short: "protect images from gc and rm",
	})
}

func imageUnpin(env *cli.Env) *cobra.Command {
	return pinVerb(env, false, &cobra.Command{
		Use:   "unpin IMAGE...",
		Short: "end the protection of images from gc and rm",
	})
}

func pinVerb(env *cli.Env, pinned bool, cmd *cobra.Command) *cobra.Command {
	f := newImageFlags(env, cmd).withPlatform(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		do := map[bool]string{true: service.AdminPin, false: service.AdminUnpin}[pinned]
		if r, err := f.atNode(cmd.Context(), &service.Admin{Do: do}, args, true); r != nil || err != nil {
			return err
		}
		s, images, err := f.openImages(args, true)
		if err != nil {
			return err
		}
		for _, i := range images {
			if err := s.Pin(cmd.Context(), &i, pinned); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func imageGC(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "remove what is not needed from the store",
		Long: `Remove layers that no image has, and what interrupted commands left. With
--older-than or --keep-bytes also images go, the ones not used longest first.
Pinned images stay, and what is being used.`,
		Example:    "gangway image gc\ngangway image gc --older-than 30d\ngangway image gc --keep-bytes 200G --dry-run",
		SuggestFor: []string{"prune", "clean"},
	}
	f := newImageFlags(env, cmd)
	var keep sizeFlag
	var age ageFlag
	var o image.GCOptions
	cmd.Flags().Var(&keep, "keep-bytes", "remove images until the store has no more bytes, as 200G")
	cmd.Flags().Var(&age, "older-than", "remove images not used for this long, as 30d or 12h")
	cmd.Flags().BoolVarP(&o.DryRun, "dry-run", "n", false, "say what would go, remove nothing")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.OlderThan = time.Duration(age); keep.set {
			o.KeepBytes = &keep.n
		}
		if r, err := f.atNode(cmd.Context(), &service.Admin{Do: service.AdminGC, GC: &o}, nil, false); r != nil || err != nil {
			return printNode(out, err, func() cli.Result { return collected{r.GC, o.DryRun} })
		}
		s, _, err := f.open()
		if err != nil {
			return err
		}
		r, err := s.GC(cmd.Context(), o)
		if err != nil {
			return err
		}
		return out.Print(collected{r, o.DryRun})
	}
	return cmd
}

// ageFlag is a flag that takes a length of time: 90m, 12h, 30d, 2w. It implements
// pflag.Value.
type ageFlag time.Duration

// Set implements pflag.Value.
func (a *ageFlag) Set(text string) error {
	bad := fault.Usage(fmt.Errorf("time %q: want a number and a unit of m, h, d or w", text), "for example 30d or 12h")
	if text == "" {
		return bad
	}
	unit, ok := map[byte]time.Duration{
		'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
	}[text[len(text)-1]]
	n, err := strconv.ParseUint(strings.TrimRight(text, "mhdw"), 10, 16)
	if !ok || err != nil || n == 0 {
		return bad
	}
	*a = ageFlag(time.Duration(n) * unit)
	return nil
}

// String implements pflag.Value.
func (a *ageFlag) String() string {
	if *a == 0 {
		return ""
	}
	return time.Duration(*a).String()
}

// Type implements pflag.Value.
func (a *ageFlag) Type() string { return "TIME" }

// verified is what "image verify" prints.
type verified struct{ image.VerifyReport }

// Text implements cli.Result.
func (v verified) Text(w io.Writer) error {
	for _, p := range v.Problems {
		what := "is damaged"
		if p.Removed {
			what = "was damaged and is removed"
		}
		if _, err := fmt.Fprintf(w, "%s %s: %s\n", quoteName(p.File), what, quoteName(strings.ReplaceAll(p.Error, "\n", "; "))); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s good, %s read\n", plural(v.Images, "image"), plural(v.Files, "file"))
	return err
}

func imageVerify(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [IMAGE...]",
		Short: "read all files of images and prove that they are good",
		Long: `Read all files of the given images, or of all, and prove their digests and
structure. A damaged file is removed, so that the next pull fetches it anew, unless
--keep is given. Exits 125 if anything is damaged.`,
		Example:    "gangway image verify\ngangway image verify --keep debian:12",
		SuggestFor: []string{"check", "scrub", "fsck"},
	}
	f := newImageFlags(env, cmd).withPlatform(cmd)
	var o image.VerifyOptions
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave damaged files where they are")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if r, err := f.atNode(cmd.Context(), &service.Admin{Do: service.AdminVerify, Keep: o.Keep}, args, false); r != nil || err != nil {
			return cmp.Or(printNode(out, err, func() cli.Result { return verified{r.Verify} }), errOf(r))
		}
		s, images, err := f.openImages(args, false)
		if err != nil {
			return err
		}
		var r image.VerifyReport
		if len(args) == 0 {
			r, err = s.VerifyAll(cmd.Context(), o)
		} else {
			r, err = s.Verify(cmd.Context(), images, o)
		}
		if err != nil {
			return err
		}
		if err := out.Print(verified{r}); err != nil {
			return err
		}
		return r.Err()
	}
	return cmd
}
