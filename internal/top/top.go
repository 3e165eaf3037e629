// Package top is a view of a cluster on a terminal: nodes, queue, and of one job its ranks, what
// they use, and the end of its output. What happens to jobs is pushed by the controller; what it
// does not push (nodes, expected starts, usage, output) is asked for when something has happened,
// and every few seconds.
//
// First use: top.Run(ctx, client, Options{...}). The package has three parts: what is known and
// what is shown of it, without I/O (model.go, view.go), and what asks (feed.go).
package top

import (
	"context"
	"errors"
	"fmt"
	"os"

	tea "charm.land/bubbletea/v2"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// Options are how it is shown.
type Options struct {
	Color bool
	Job   job.ID // to begin with; 0: the first
	In    *os.File
	Out   *os.File
}

// Run shows the cluster until the user quits or ctx ends.
func Run(ctx context.Context, client *api.Client, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(o.Color)
	m.wanted = jobKey{id: o.Job}
	f := &feed{client: client, asks: make(chan selection, 1)}
	m.selected = f.selects
	p := tea.NewProgram(screen{m}, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out))
	go f.run(ctx, p.Send)
	_, err := p.Run()
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, context.Canceled) || err != nil && ctx.Err() != nil {
		return nil // it is how people end it
	}
	if err != nil {
		return fmt.Errorf("show cluster: %w", err)
	}
	return nil
}

// screen is the model as Bubble Tea has it.
type screen struct{ *model }

// Init implements tea.Model.
func (s screen) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		if s.key(msg.String()) {
			return s, tea.Quit
		}
	default:
		s.hear(msg)
	}
	return s, nil
}

// View implements tea.Model.
func (s screen) View() tea.View {
	v := tea.NewView(s.view())
	v.AltScreen = true
	return v
}
