// Command gangwayd is the daemon side: controller, node agent and store service,
// once they exist. Today it only says what it is.
//
// This file is the command table; a verb is one file beside it and one line here.
package main

import "github.com/gangway-hpc/gangway/internal/cli"

func main() { cli.Main(program()) }

func program() cli.Program {
	return cli.Program{
		Name:  "gangwayd",
		Short: "the daemons of Gangway",
		Long: `The daemons of Gangway: controller, node agent and store service.

None of them exists in this version; the commands below are all there is.`,
		Example: "gangwayd version --json",
		Verbs: []cli.Verb{
			cli.Version,
			cli.Completion,
			cli.Man,
		},
	}
}
