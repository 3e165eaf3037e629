package slurm

import (
	"bufio"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// plugStack reads plugstack.conf, or what PlugStackConfig names: the plugins that Slurm
// loads into its commands and steps (SPANK, spank(7)). None is loaded here; Pyxis is what
// Gangway is itself. What cannot be read in it refuses nothing.
func (r *reader) plugStack(name string) error {
	dir := path.Dir(name)
	file, named := "plugstack.conf", r.conf.plugStack
	if named != "" {
		file = named
	}
	at := r.conf.said["plugstackconfig"]
	// An absolute name is of the machine that the files are from, of which these may be a copy.
	tries := []string{path.Join(dir, file)}
	if path.IsAbs(file) {
		tries = []string{path.Join(dir, path.Base(file)), file}
	}
	for _, try := range tries {
		err := r.plugins(try, dir, nil)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if named != "" {
		r.add(at.at, Finding{
			Severity: SeverityWarning, Key: at.key, Value: at.value, Text: "the file is not there: it is not known which plugins it has",
			Remedy: "put it beside slurm.conf, or leave the line out: container options need no plugin",
		})
	}
	return nil
}

// plugins reads one file of plugins.
func (r *reader) plugins(name, dir string, from []string) error {
	file, err := r.files.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	from = append(from, name)
	lines := lineScanner{scanner: bufio.NewScanner(file), file: path.Base(name), single: true}
	lines.scanner.Buffer(nil, maxLine)
	for {
		text, err := lines.next()
		if done, err := ended(err); done {
			return err
		}
		l := line{file: lines.file, number: lines.first}
		words := strings.Fields(text) // Slurm knows no quotes here
		switch kind := words[0]; {
		case kind == "include" && len(words) >= 2:
			if err := r.includePlugins(l, words[1], dir, from); err != nil {
				return err
			}
		case (kind == "required" || kind == "optional") && len(words) >= 2:
			r.plugin(l, kind, words[1], words[2:])
		default:
			r.say(l, SeverityError, pair{}, "want required or optional, the plugin's file and its arguments; or include and a file; in small letters", "mend it, or leave it out; Slurm passes it over")
		}
	}
}

// includePlugins reads the files that a pattern has. None is as good.
func (r *reader) includePlugins(l line, pattern, dir string, from []string) error {
	here := path.Join(dir, pattern)
	if path.IsAbs(pattern) {
		here = path.Join(dir, path.Base(path.Dir(pattern)), path.Base(pattern)) // of a copy
	}
	names, err := fs.Glob(r.files, here)
	if err == nil && len(names) == 0 && path.IsAbs(pattern) {
		names, err = fs.Glob(r.files, pattern)
	}
	if err != nil {
		r.say(l, SeverityError, pair{"include", pattern}, "it is no pattern of files", "write it as DIR/*.conf")
		return nil
	}
	if len(names) == 0 {
		r.add(l, Finding{Severity: SeverityNote, Key: "include", Value: pattern, Text: "no such file is here"})
	}
	for _, name := range names {
		switch {
		case slices.Contains(from, name) || len(from) >= maxInclude:
			r.say(l, SeverityError, pair{"include", pattern}, "files include each other", "leave one of the lines out")
			continue
		case r.included >= maxIncluded:
			return l.errorf("include %s: more than %d files are included", pattern, maxIncluded)
		}
		r.included++
		if err := r.plugins(name, dir, from); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// plugin says what becomes of one.
func (r *reader) plugin(l line, kind, file string, args []string) {
	p := pair{kind, file}
	base := strings.TrimSuffix(path.Base(file), ".so")
	if strings.TrimPrefix(base, "spank_") == "pyxis" || base == "pyxis" {
		r.add(l, Finding{Severity: SeverityNote, Key: p.key, Value: p.value, Text: "Pyxis is built in: container options are always there, and need no plugin"})
		r.pyxis(l, args)
		return
	}
	r.cluster.Ignored = append(r.cluster.Ignored, Setting{l.file, l.number, p.key, p.value})
	r.add(l, Finding{
		Severity: SeverityWarning, Key: p.key, Value: p.value, Text: "the plugin is not loaded, and its options are unknown to sbatch, srun and salloc",
		Remedy: "have containers prepared by hooks of the site instead: docs/hooks.md",
	})
}

// pyxis says what becomes of arguments of Pyxis. Those of 0.24 are known.
func (r *reader) pyxis(l line, args []string) {
	entry := false
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		p := pair{name, value}
		on := isOneOf(value, "1 true yes y")
		bad := ""
		if isOneOf(name, "execute_entrypoint sbatch_support use_enroot_load use_squashfuse") && !on && !isOneOf(value, "0 false no n") {
			bad = "want 1 or 0"
		} else if name == "container_scope" && !isOneOf(value, "job global") {
			bad = "want job or global"
		}
		if bad != "" {
			r.say(l, SeverityError, p, bad, "mend it, or leave it out; Pyxis refuses all jobs with it")
			continue
		}
		f := Finding{Severity: SeverityNote, Key: p.key, Value: p.value, Text: "it is so here anyway"}
		switch name {
		case "execute_entrypoint":
			if entry = true; !on {
				f = entrypoints(p)
			}
		case "sbatch_support":
			if !on {
				f.Severity, f.Text, f.Remedy = SeverityWarning, "sbatch and salloc have container options, too", "leave it out"
			}
		case "container_scope":
			if value == "job" {
				f.Severity, f.Text = SeverityWarning, "named containers stay until they are removed, and are not the job's alone"
				f.Remedy = "remove them: gangway container rm NAME; or name them by the job: --container-name=NAME-$SLURM_JOB_ID"
			}
		case "runtime_path", "use_enroot_load", "use_squashfuse", "importer":
			f.Text = "images are fetched and mounted by Gangway itself, without unpacking them"
		default:
			f = Finding{Severity: SeverityWarning, Key: p.key, Value: p.value, Text: "unknown to Pyxis 0.24: it is passed over", Remedy: "leave it out"}
		}
		r.add(l, f)
	}
	if !entry {
		r.add(l, entrypoints(pair{"execute_entrypoint", "0"}))
	}
}

// entrypoints is what differs of entry points where Pyxis does not run them, as by default.
func entrypoints(p pair) Finding {
	return Finding{
		Severity: SeverityWarning, Key: p.key, Value: p.value, Text: "the entry point of an image is run unless a job says otherwise",
		Remedy: "write --no-container-entrypoint in scripts that do without",
	}
}
