package doctor

import (
	"bytes"
	"context"
	_ "embed" // the profile
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/proc"
)

const (
	profileName = "gangway"
	profileFile = "/etc/apparmor.d/gangway"
	profileFor  = "/usr/bin/gangway" // in the text
)

//go:embed gangway.apparmor
var profileText string

// Profile returns the AppArmor profile for this program installed as program.
func Profile(program string) string {
	// Inside quotes these mean something to AppArmor.
	var escaped strings.Builder
	for _, r := range program {
		if strings.ContainsRune(`\"*?[]{}^@`, r) {
			escaped.WriteByte('\\')
		}
		escaped.WriteRune(r)
	}
	return strings.Replace(profileText, `"`+profileFor+`"`, `"`+escaped.String()+`"`, 1)
}

// plainProfile is a profile that parsers before AppArmor 4 understand. They know no rule
// for user namespaces and break off at one.
func plainProfile(text string) string {
	text = strings.Replace(text, "abi <abi/4.0>,\n", "", 1)
	return strings.Replace(text, "  userns,\n\n", "", 1)
}

func (e *examination) appArmor(context.Context) Finding {
	f := Finding{Result: OK, Tried: "read kernel.apparmor_restrict_unprivileged_userns and this process's profile"}
	switch {
	case !e.facts.restricted():
		f.Got = "does not restrict user namespaces"
	case e.facts.profiled():
		f.Got = "restricts user namespaces; the profile " + e.facts.label + " permits them to this program"
	case os.Geteuid() == 0:
		f.Got = "restricts user namespaces, of others than root"
	default:
		why := e.facts.appArmored()
		f.Result, f.Got = Degraded, "restricts user namespaces, also this program's"
		f.Cause, f.Remedy = why.cause, why.remedy
		f.Consequence = "containers do not start, unless something else permits it"
	}
	return f
}

// AppArmor says where FixAppArmor finds things. The zero value is the machine it runs on.
type AppArmor struct {
	Root    string // where /etc and /sys are; empty is the machine's
	Program string // for which path; empty is this program's
	Parser  string // empty is apparmor_parser
}

// Fixed is what FixAppArmor did.
type Fixed struct {
	File       string `json:"file"`
	Program    string `json:"program"`
	Restricted bool   `json:"restricted"` // the kernel has the restriction in force
	Loaded     bool   `json:"loaded"`     // into the kernel
}

// FixAppArmor installs the profile that we ship, and loads it. It needs root.
func FixAppArmor(ctx context.Context, a AppArmor) (Fixed, error) {
	f := facts{root: a.Root}
	done := Fixed{File: a.Root + profileFile, Program: a.Program, Restricted: f.restricted()}
	if !f.exists("/sys/kernel/security/apparmor", "/sys/module/apparmor") {
		return done, &fault.Error{
			What: errors.New("install AppArmor profile: this kernel runs without AppArmor"),
			Hint: "nothing is to be mended there; what is: gangway doctor",
		}
	}
	if a.Root == "" && os.Geteuid() != 0 {
		return done, needsRoot(errors.New("install AppArmor profile: this is not root"))
	}
	if a.Parser == "" {
		a.Parser = "apparmor_parser"
	}
	parser, err := exec.LookPath(a.Parser)
	if err != nil {
		return done, &fault.Error{
			What: fmt.Errorf("install AppArmor profile: %w", err),
			Hint: "install AppArmor's programs first: sudo apt-get install apparmor",
		}
	}
	if done.Program, err = ownProgram(a.Program); err != nil {
		return done, err
	}
	text := Profile(done.Program)
	if err := parse(ctx, parser, text); err != nil {
		if !done.Restricted {
			return done, &fault.Error{
				What:  fmt.Errorf("install AppArmor profile: %w", err),
				Cause: "this AppArmor is older than 4.0 and restricts no user namespaces",
				Hint:  "nothing is to be mended there; what is: gangway doctor",
			}
		}
		if text = plainProfile(text); parse(ctx, parser, text) != nil {
			return done, fmt.Errorf("install AppArmor profile: %w", err)
		}
	}
	if err := fsx.WriteFile(ctx, done.File, fsx.Options{Mode: 0o644}, func(w *os.File) error {
		_, err := w.WriteString(text)
		return err
	}); err != nil {
		return done, needsRoot(fmt.Errorf("write AppArmor profile %s: %w", done.File, err))
	}
	if err := command(ctx, nil, parser, "-r", done.File); err != nil {
		return done, needsRoot(fmt.Errorf("load AppArmor profile %s: %w", done.File, err))
	}
	done.Loaded = true
	return done, nil
}

// ownProgram returns the path that the profile is for. A file that others than root can
// replace gets none: they could do with the permission what they like.
func ownProgram(path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		path = self
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	for at := path; ; at = filepath.Dir(at) {
		st, err := os.Stat(at)
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		sticky := st.IsDir() && st.Mode()&os.ModeSticky != 0
		if !ok || sys.Uid != 0 || st.Mode().Perm()&0o022 != 0 && !sticky {
			return "", &fault.Error{
				What:  fmt.Errorf("install AppArmor profile for %s: others than root can change it", path),
				Cause: fmt.Sprintf("%s belongs to user %d and has mode %#o", at, sys.Uid, st.Mode().Perm()),
				Hint:  "install it first: sudo install " + quote(path) + " /usr/local/bin/gangway && sudo /usr/local/bin/gangway doctor --fix apparmor",
			}
		}
		if at == "/" {
			return path, nil
		}
	}
}

// parse says whether the parser understands a profile, without loading it.
func parse(ctx context.Context, parser, text string) error {
	return command(ctx, []byte(text), parser, "--skip-kernel-load", "--skip-cache")
}

func command(ctx context.Context, stdin []byte, name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	proc.Confine(cmd)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", filepath.Base(name), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// needsRoot gives an error its remedy where that is to be root.
func needsRoot(err error) error {
	if os.Geteuid() == 0 {
		return err
	}
	return &fault.Error{What: err, Cause: "only root may do that", Hint: "sudo gangway doctor --fix apparmor"}
}
