package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Completion is the verb that prints the completion script of a shell.
func Completion(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "print a shell's completion script",
		Long: `Print the script that completes commands and flags on the command line.
"make install" puts it where shells look for it.`,
		Example: fmt.Sprintf("source <(%[1]s completion bash)\n"+
			"%[1]s completion fish > ~/.config/fish/completions/%[1]s.fish", env.Program),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch root := c.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(env.Stdout)
			case "fish":
				return root.GenFishCompletion(env.Stdout, true)
			}
			return fault.Usage(fmt.Errorf("no completion for shell %q", args[0]), "usage: "+c.UseLine())
		},
	}
}
