// Command gangway is the client and the container runtime: what researchers,
// administrators and CI type. It links no server code, because every linked
// package costs start-up time and gangway is started once a container.
//
// This file is the command table; a verb is one file beside it and one line here.
package main

import (
	"os"
	"slices"

	"github.com/gangway-hpc/gangway/internal/cli"
)

func main() {
	// Slurm's commands are links to this program, see "gangway slurm install".
	if name := slurmName(os.Args[0]); name != "" {
		os.Args = slices.Insert(os.Args, 1, name)
	}
	cli.Main(program())
}

func program() cli.Program {
	return cli.Program{
		Name:  "gangway",
		Short: "run containers on GPU clusters",
		Long: `Gangway runs containerised jobs on GPU clusters and single machines.

This version holds only the commands listed below.`,
		Example: `gangway run --container-image=debian:12 -- cat /etc/os-release
gangway image pull docker.io/library/debian:12
gangway image ls
gangway squashfs create ./rootfs image.sqsh
gangway squashfs ls -l image.sqsh /etc
gangway help squashfs create
source <(gangway completion bash)`,
		Hidden: hiddenVerbs(),
		Verbs: slices.Concat([]cli.Verb{
			runVerb,
			execVerb,
			containerVerb,
			doctorVerb,
			imageVerb,
			squashfsVerb,
			simVerb,
			queueVerb,
			nodesVerb,
			historyVerb,
			showVerb,
			explainVerb,
			planVerb,
			reconfigureVerb,
			submitVerb,
			allocVerb,
			cancelVerb,
			logsVerb,
			slurmVerb,
			cli.Version,
			cli.Completion,
			cli.Man,
		}, daemonVerbs()),
	}
}

// hiddenVerbs are those that this program and agents start, and Slurm's names.
func hiddenVerbs() map[string]cli.Verb {
	all := slurmVerbs()
	all["step"], all[serveVerb], all[sweepVerb] = stepVerb, stepServe, stepSweep
	all[probeVerb], all["doctor-probe"] = stepProbe, doctorProbe
	return all
}
