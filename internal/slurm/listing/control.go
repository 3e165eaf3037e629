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

	Clusters []string // -M; nil: not said
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

// The words of scontrol, how many letters of them are enough, and how many words they take
// behind them at least.
var (
	controlVerbs = []keyword{
		{"help", 2, 0},
		{"hold", 3, 1},
		{"holdu", 5, 1},
		{"listpids", 1, 0},
		{"ping", 2, 0},
		{"reconfigure", 3, 0},
		{"release", 3, 1},
		{"requeue", 3, 1},
		{"requeuehold", 8, 1},
		{"show", 3, 0},
		{"uhold", 2, 1},
		{"update", 1, 0},
		{"version", 4, 0},
		{"wait_job", 1, 1},
		{"write", 2, 1},
	}
	controlEntities = []keyword{
		{"aliases", 1, 0},
		{"config", 1, 0},
		{"hostlist", 5, 0},
		{"hostlistsorted", 9, 0},
		{"hostnames", 5, 0},
		{"jobs", 1, 0},
		{"licenses", 2, 0},
		{"nodes", 1, 0},
		{"partitions", 1, 0},
		{"reservations", 1, 0},
		{"steps", 1, 0},
		{"topology", 1, 0},
	}
	controlAbsent = []string{
		"abort", "cancel_reboot", "completing", "cluster", "create", "delete", "errnumstr", "fsdampeningfactor", "getaddrs", "notify", "pidinfo",
		"power", "reboot", "resume", "schedloglevel", "setdebug", "setdebugflags", "shutdown", "suspend", "takeover", "token", "top",
	}
	entitiesAbsent = []string{"assoc_mgr", "bbstat", "burstbuffer", "daemons", "dwstat", "federation", "frontend", "slurmd"}
	// switches are words that are options, of which one command line has nothing.
	controlSwitches = []string{"all", "details", "exit", "future", "hide", "local", "oneliner", "quiet", "quit", "verbose"}
)

// keyword is a word of which its first letters do.
type keyword struct {
	word string
	min  int
	args int
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
	given, operands, err := slurm.Getopt(controlFlags, args, false)
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
		case "cluster", "clusters":
			c.Clusters = words(g.Value)
		case "json", "yaml", "uid", "sibling":
			return nil, unsupported(name)
		}
	}
	if len(operands) == 0 {
		return nil, refuse("scontrol without a command is interactive in Slurm, which Gangway does not support; try: scontrol --help")
	}
	return c, c.command(operands[0], operands[1:])
}

// command reads a verb and what is behind it.
func (c *Control) command(verb string, args []string) error {
	c.Verb, c.Args = match(controlVerbs, verb), args
	switch word := strings.ToLower(verb); {
	case c.Verb == "" && slices.Contains(controlAbsent, word):
		return refuse("scontrol %s is not supported by Gangway", word)
	case c.Verb == "" && slices.Contains(controlSwitches, word):
		c.Verb = "nothing"
		return nil
	case c.Verb == "":
		return plainly("invalid keyword: %s", verb)
	}
	for _, k := range controlVerbs {
		if k.word == c.Verb && len(args) < k.args {
			return plainly("too few arguments for keyword:%s", verb)
		}
	}
	if c.Verb == "show" {
		return c.entity()
	}
	return nil
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
		for _, absent := range entitiesAbsent {
			if len(word) > 2 && strings.HasPrefix(absent, strings.ToLower(word)) {
				return refuse("scontrol show %s is not supported by Gangway", absent)
			}
		}
		return plainly("invalid entity:%s for keyword:show ", word)
	}
	if len(c.Args) > 1 {
		return plainly("too many arguments for keyword:show")
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
  listpids [JOB[.STEP] [NODE]]    the processes of steps
  show aliases|config|licenses|reservations|topology
  show hostnames [LIST]           the names of a hostlist, a line each
  show hostlist NAMES             the contrary; hostlistsorted
  show job [JOB]
  show node [NODES]
  show partition [NAME]
  show step [JOB[.STEP]]
  update JobId=JOB KEY=VALUE...   Account ArrayTaskThrottle Comment Contiguous CPUs/Task Deadline Dependency ExcNodeList
                                  Features Gres JobName Licenses MinMemoryCPU MinMemoryNode Nice NumCPUs NumNodes NumTasks
                                  OverSubscribe Partition Priority QOS ReqNodeList Requeue StartTime TasksPerNode
                                  TimeLimit[+|-] TimeMin
  update NodeName=NODES State=DOWN|DRAIN|FAIL|RESUME|UNDRAIN Reason=TEXT
  update PartitionName=NAME KEY=VALUE...
                                  State Default Nodes MaxTime DefaultTime MaxNodes MinNodes PriorityTier PriorityJobFactor
                                  OverSubscribe DefMemPerCPU DefMemPerNode AllowAccounts AllowGroups AllowQos DenyAccounts
                                  DenyQos; until the configuration of the partition is another one
  ping
  reconfigure                     read the configuration again; gangway reconfigure --dry-run says what that changes
  wait_job JOB                    until its nodes are ready
  write batch_script JOB [FILE]   FILE may be -
`)
	return err
}
