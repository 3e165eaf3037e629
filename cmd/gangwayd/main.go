// Command gangwayd is the daemon side: controller, node agent, the image store that users of
// a node share, and a whole cluster on one machine.
//
// This file is the command table; a verb is one file beside it and one line here.
package main

import "github.com/gangway-hpc/gangway/internal/cli"

func main() { cli.Main(program()) }

func program() cli.Program {
	return cli.Program{
		Name:  "gangwayd",
		Short: "the daemons of Gangway",
		Long: `The daemons of Gangway: the controller, the agent of a node, the image store that the
users of a node share, and up, which runs a whole cluster on this machine.`,
		Example: "gangwayd up --nodes 4",
		Verbs: []cli.Verb{
			upVerb,
			topVerb,
			initVerb,
			controllerVerb,
			agentVerb,
			clientVerb,
			storeVerb,
			tokenVerb,
			revokeVerb,
			cli.Version,
			cli.Completion,
			cli.Man,
		},
	}
}
