package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/plan"
)

// DryRun returns the operations that would start the container, on the best rung as far
// as that is known. It makes nothing and tries nothing; where a run would make a
// directory, its name has "ID" in it.
func DryRun(ctx context.Context, o Options) (*plan.Plan, error) {
	s := &step{Options: o, last: time.Now(), ranks: newRanks(), dry: true}
	defer s.close()
	if err := s.dryNamed(); err != nil {
		return nil, err
	}
	if err := s.openImage(ctx); err != nil {
		return nil, err
	}
	if s.Name != "" && s.named == nil {
		s.named = &Named{Name: s.Name, dir: filepath.Join(s.Containers, s.Name)}
	}
	var err error
	if s.host, err = readHost(s.Environ, s.Getenv); err != nil {
		return nil, err
	}
	s.dir = &runDir{path: filepath.Join(s.Dirs[0], "ID")}
	if err := s.devices(ctx); err != nil {
		return nil, err
	}
	c, err := s.configFor(ctx, s.rungs(ctx)[0])
	if err != nil {
		return nil, err
	}
	return runtime.Compile(c, runtime.ProbeFeatures())
}

// dryNamed looks at the container that the run would start, as openNamed does, and
// leaves it to others.
func (s *step) dryNamed() error {
	if s.Name == "" {
		return nil
	}
	if err := checkName(s.Name); err != nil {
		return err
	}
	if _, _, err := FindNamed(s.Dirs, s.Containers, s.Name); err == nil && s.NameUse != "create" {
		return &fault.Error{
			What: fmt.Errorf("plan a start of container %s: it runs already", s.Name),
			Hint: "the command would run in it; look at it: gangway container ls",
		}
	}
	n, err := readNamed(filepath.Join(s.Containers, s.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.NameUse == "exec":
		return noContainer(s.Name)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case s.NameUse == "create":
		return exists(s.Name)
	}
	s.named = n
	if !s.RemapGiven {
		s.Request.RemapRoot = s.Request.RemapRoot || n.Remap
	}
	return nil
}
