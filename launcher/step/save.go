package step

import (
	"context"
	"errors"
	"fmt"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// save writes the container to a file when its command has ended, whatever its status
// was: what a failed command left behind is what one wants to look at.
func (s *step) save(ctx context.Context, ran error) error {
	if s.SaveTo == "" {
		return nil
	}
	if _, ok := errors.AsType[fault.Exit](ran); ran != nil && !ok {
		return nil // it did not run to its end
	}
	// No process of the container may write any more.
	if err := s.container.Close(); err != nil {
		return err
	}
	if err := s.Save(ctx, s.image, s.saved, s.SaveTo); err != nil {
		return fmt.Errorf("save container: %w", err)
	}
	s.phase("save", s.SaveTo)
	return nil
}
