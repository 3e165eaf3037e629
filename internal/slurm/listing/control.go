package listing

import (
	"io"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Control is a command line of scontrol.
type Control struct {
	Verb    string   // hold, update, ...; of "show" the entity: job, node, hostnames, ...
	Args    []string // behind it
	OneLine bool     // -o
	Details bool     // -d
	Quiet   bool     // -Q
}

var controlFlags = []slurm.Flag{
	{Long: "all", Short: 'a'},
	{Long: "cluster", Argument: slurm.RequiredArgument},
	{Long: "clusters", Short: 'M', Argument: slurm.RequiredArgument},
	{Long: "details", Short: 'd'},
	{Long: "federation"},
	{Long: "future", Short: 'F'},
	{Long: "help", Short: 'h'},
	{Long: "hide"},
	{Long: "json", Argument: slurm.OptionalArgument},
	{Long: "local"},
	{Long: "oneliner", Short: 'o'},
	{Long: "quiet", Short: 'Q'},
	{Long: "sibling"},
	{Long: "uid", Short: 'u', Argument: slurm.RequiredArgument},
	{Long: "verbose", Short: 'v'},
	{Long: "version", Short: 'V'},
	{Long: "yaml", Argument: slurm.OptionalArgument},
}

// The words of scontrol, and how many letters of them are enough.
var (
	controlVerbs = []keyword{
		{"help", 2},
		{"hold", 3},
		{"holdu", 5},
		{"ping", 2},
		{"release", 3},
		{"requeue", 3},
		{"requeuehold", 8},
		{"show", 2},
		{"uhold", 2},
		{"update", 1},
		{"version", 4},
		{"wait_job", 1},
		{"write", 2},
	}
	controlEntities = []keyword{
		{"config", 1},
		{"hostlist", 5},
		{"hostlistsorted", 9},
		{"hostnames", 5},
		{"jobs", 1},
		{"nodes", 1},
		{"partitions", 1},
		{"steps", 1},
		{"topology", 1},
		{"licenses", 2},
		{"reservations", 1},
	}
	controlAbsent = []string{
		"abort", "cancel_reboot", "completing", "create", "delete", "errnumstr", "listpids", "notify", "pidinfo", "power", "reboot",
		"reconfigure", "resume", "schedloglevel", "setdebug", "setdebugflags", "shutdown", "suspend", "takeover", "token", "top",
	}
)

// keyword is a word of which its first letters do.
type keyword struct {
	word string
	min  int
}

// match finds a word by its beginning, in any case; an exact one comes first.
func match(words []keyword, text string) string {
	text = strings.ToLower(text)
	for _, k := range words {
		if text == k.word {
			return k.word
		}
	}
	for _, k := range words {
		if len(text) >= k.min && strings.HasPrefix(k.word, text) {
			return k.word
		}
	}
	return ""
}

// ParseControl reads scontrol's command line, without the program's name.
func ParseControl(args []string) (*Control, error) {
	given, words, err := slurm.Getopt(controlFlags, args, false)
	if err != nil {
		return nil, err
	}
	c := &Control{}
	for _, g := range given {
		switch name := controlFlags[g.Flag].Long; name {
		case "details":
			c.Details = true
		case "oneliner":
			c.OneLine = true
		case "quiet":
			c.Quiet = true
		case "help":
			return &Control{Verb: "help"}, nil
		case "version":
			return &Control{Verb: "version"}, nil
		case "json", "yaml", "uid", "sibling":
			return nil, unsupported(name)
		}
	}
	if len(words) == 0 {
		return nil, refuse("scontrol without a command is interactive in Slurm, which Gangway does not support; try: scontrol --help")
	}
	c.Verb, c.Args = match(controlVerbs, words[0]), words[1:]
	switch {
	case c.Verb == "" && slices.Contains(controlAbsent, strings.ToLower(words[0])):
		return nil, refuse("scontrol %s is not supported by Gangway", words[0])
	case c.Verb == "":
		return nil, plainly("invalid keyword: %s", words[0])
	case c.Verb == "show":
		return c, c.entity()
	}
	return c, nil
}

// entity reads what is to be shown: "show job 5", "show job=5".
func (c *Control) entity() error {
	if len(c.Args) == 0 {
		return plainly("too few arguments for keyword:show")
	}
	word, value, joined := strings.Cut(c.Args[0], "=")
	c.Verb, c.Args = match(controlEntities, word), c.Args[1:]
	if joined {
		c.Args = append([]string{value}, c.Args...)
	}
	if c.Verb == "" {
		return plainly("invalid entity:%s for keyword:show ", word)
	}
	return nil
}

// plainly is a refusal without the program's name before it.
func plainly(format string, args ...any) error {
	err := refuse(format, args...).(*slurm.Refusal)
	err.Plain = true
	err.Lines[0] = strings.TrimPrefix(err.Lines[0], "error: ")
	return err
}

// ControlUsage writes what scontrol takes.
func ControlUsage(w io.Writer) error {
	_, err := io.WriteString(w, `Usage: scontrol [-d] [-o] [-Q] COMMAND
  hold JOB...                     keep jobs from starting
  release JOB...                  the contrary
  requeue JOB...                  run jobs again from the beginning
  requeuehold JOB...              the same, and hold them
  show config
  show hostnames [LIST]           the names of a hostlist, a line each
  show hostlist NAMES             the contrary; hostlistsorted
  show job [JOB]
  show node [NODES]
  show partition [NAME]
  show step [JOB[.STEP]]
  update JobId=JOB NAME=VALUE...  Comment is not kept; Nice, Priority, TimeLimit, Partition, JobName, NumNodes, ...
  update NodeName=NODES State=DRAIN|RESUME|DOWN|UNDRAIN|FAIL Reason=TEXT
  update PartitionName=NAME State=UP|DOWN|DRAIN|INACTIVE
  ping
  write batch_script JOB [FILE]   FILE may be -
`)
	return err
}
