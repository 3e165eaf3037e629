package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// askers is how many nodes are asked at a time.
const askers = 64

// Usage asks the nodes of a step what its ranks have used so far: those that run, in their
// order. With an error there may be ranks nevertheless, of other nodes. The step that has
// ended on a node has none there.
func Usage(ctx context.Context, s *api.Step) ([]job.RankUsage, error) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		all   []job.RankUsage
		errs  []error
	)
	places := make(chan struct{}, askers)
	for i := range min(len(s.Nodes), len(s.Agents)) {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			of, err := usageOn(ctx, s.Agents[i], s.Key)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, of...)
			if err != nil {
				errs = append(errs, fmt.Errorf("ask node %s: %w", s.Nodes[i], err))
			}
		})
	}
	group.Wait()
	slices.SortFunc(all, func(a, b job.RankUsage) int { return a.Rank - b.Rank })
	return all, errors.Join(errs...)
}

// usageTime is how long a node may take to answer.
const usageTime = 10 * time.Second

func usageOn(ctx context.Context, address string, key job.StepKey) ([]job.RankUsage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	conn, r, err := api.Dial(address).Upgrade(ctx, "/v1/steps/"+control.DirOf(key)+"/io", "gangway-stdio")
	if _, gone := errors.AsType[*api.Gone](err); gone {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(control.Request{Usage: true}); err != nil {
		return nil, err
	}
	var e control.Event
	if err := json.NewDecoder(io.LimitReader(r, control.MaxLine)).Decode(&e); err != nil {
		return nil, err
	}
	if e.Refused != "" {
		return nil, errors.New(e.Refused)
	}
	return e.Usage, nil
}
