package main

import (
	"context"

	"github.com/gangway-hpc/gangway/internal/cli"
)

func scancel(ctx context.Context, env *cli.Env, args []string) error { return nil }
func srun(ctx context.Context, env *cli.Env, args []string) error { return nil }
func salloc(ctx context.Context, env *cli.Env, args []string) error { return nil }
