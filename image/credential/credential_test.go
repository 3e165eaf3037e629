package credential_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// home makes an empty home directory and an environment that names nothing else.
// files are written below it; those in bin/ are programs on the PATH.
func home(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		mode := os.FileMode(0o600)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o700
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "ENROOT_CONFIG_PATH"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", dir)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	return dir
}

// find looks up "HOST/REPOSITORY" or "USER@HOST/REPOSITORY".
func find(t *testing.T, name string) (credential.Credential, error) {
	t.Helper()
	user, rest, ok := strings.Cut(name, "@")
	if !ok {
		user, rest = "", name
	}
	host, repository, _ := strings.Cut(rest, "/")
	return credential.New(credential.Options{}).Find(t.Context(), host, repository, user)
}

// show is a credential with its secrets.
func show(c credential.Credential) string {
	return strings.Join([]string{c.Username, c.Password, c.IdentityToken, c.RegistryToken}, "|")
}

const (
	docker = ".docker/config.json"
	podman = ".config/containers/auth.json"
	enroot = ".config/enroot/.credentials"
)

func TestFind(t *testing.T) {
	echo := func(user, secret string) string {
		return fmt.Sprintf("#!/bin/sh\nread -r server\n[ \"$1\" = get ] && printf '{\"ServerURL\":\"%%s\",\"Username\":\"%s\",\"Secret\":\"%s-%%s\"}' \"$server\" \"$server\"\n", user, secret)
	}
	none := "#!/bin/sh\necho 'credentials not found in native keychain'\nexit 1\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		ask   string
		want  string // show, or "|||" for none
		from  string // a part of Source
	}{
		{"no file at all", nil, "ghcr.io/a/b", "|||", ""},
		{"empty file", map[string]string{docker: " \n"}, "ghcr.io/a/b", "|||", ""},
		{"auth", map[string]string{docker: `{"auths":{"ghcr.io":{"auth":"dTpwOnc="}}}`}, "ghcr.io/a/b", "u|p:w||", "config.json, auths"},
		{"auth with NULs", map[string]string{docker: `{"auths":{"ghcr.io":{"auth":"dTpwAAA="}}}`}, "ghcr.io/a/b", "u|p||", ""},
		{"username and password", map[string]string{docker: `{"auths":{"https://GHCR.io/v2/":{"username":"u","password":"p"}}}`}, "ghcr.io/a/b", "u|p||", ""},
		{"tokens", map[string]string{docker: `{"auths":{"ghcr.io":{"identitytoken":"i","registrytoken":"r"}}}`}, "ghcr.io/a/b", "||i|r", ""},
		{"identity token as user", map[string]string{docker: `{"auths":{"ghcr.io":{"username":"<token>","password":"p"}}}`}, "ghcr.io/a/b", "||p|", ""},
		{"Docker Hub", map[string]string{docker: `{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}`}, "docker.io/library/a", "u|p||", ""},
		{"Docker Hub by alias", map[string]string{docker: `{"auths":{"docker.io":{"auth":"dTpw"}}}`}, "registry-1.docker.io/library/a", "u|p||", ""},
		{"another host", map[string]string{docker: `{"auths":{"ghcr.io":{"auth":"dTpw"},"evil-ghcr.io":{"auth":"dTpw"}}}`}, "io/a", "|||", ""},
		{"another port", map[string]string{docker: `{"auths":{"a.org:5000":{"auth":"dTpw"}}}`}, "a.org:5001/a", "|||", ""},
		{"port", map[string]string{docker: `{"auths":{"a.org:5000":{"auth":"dTpw"},"a.org":{"auth":"eDp5"}}}`}, "a.org:5000/a", "u|p||", ""},
		{"exact key wins", map[string]string{docker: `{"auths":{"http://a.org":{"auth":"eDp5"},"a.org":{"auth":"dTpw"},"https://a.org":{"auth":"eDp5"}}}`}, "a.org/a", "u|p||", ""},
		{"user", map[string]string{docker: `{"auths":{"a.org":{"auth":"eDp5"}}}`, enroot: "machine a.org login u password p"}, "u@a.org/a", "u|p||", ".credentials, line 1"},
		{"no such user", map[string]string{docker: `{"auths":{"a.org":{"auth":"eDp5"}}}`, enroot: "machine a.org login u password p"}, "v@a.org/a", "|||", ""},
		{"namespace", map[string]string{podman: `{"auths":{"a.org":{"auth":"eDp5"},"a.org/n":{"auth":"dTpw"},"a.org/n/rep":{"auth":"eDp5"}}}`}, "a.org/n/repo", "u|p||", "auth.json"},
		{"repository", map[string]string{podman: `{"auths":{"a.org/n":{"auth":"eDp5"},"a.org/n/repo":{"auth":"dTpw"}}}`}, "a.org/n/repo", "u|p||", "auth.json"},
		{"Podman before Docker", map[string]string{podman: `{"auths":{"a.org":{"auth":"dTpw"}}}`, docker: `{"auths":{"a.org":{"auth":"eDp5"}}}`}, "a.org/n/repo", "u|p||", "auth.json"},
		{"helper", map[string]string{docker: `{"auths":{"a.org":{}},"credsStore":"x"}`, "bin/docker-credential-x": echo("u", "s")}, "a.org/n/repo", "u|s-a.org||", "docker-credential-x"},
		{"helper for Docker Hub", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": echo("<token>", "s")}, "docker.io/library/a", "||s-https://index.docker.io/v1/|", "docker-credential-x"},
		{"helper of a host", map[string]string{docker: `{"credHelpers":{"a.org":"y"},"credsStore":"x"}`, "bin/docker-credential-x": none, "bin/docker-credential-y": echo("u", "y")}, "a.org/a", "u|y-a.org||", "docker-credential-y"},
		{"helper has none", map[string]string{docker: `{"auths":{"a.org":{"auth":"dTpw"}},"credsStore":"x"}`, "bin/docker-credential-x": none}, "a.org/a", "u|p||", "auths"},
		{"helper has another user", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": echo("x", "y")}, "u@a.org/a", "|||", ""},
		{"netrc", map[string]string{enroot: "# nvidia\nmachine nvcr.io login $oauthtoken password abc\n\nmachine a.org\n\tlogin u\n\tpassword #p\n"}, "a.org/a", "u|#p||", "line 6"},
		{"netrc user that looks like a variable", map[string]string{enroot: "machine nvcr.io login $oauthtoken password abc"}, "nvcr.io/a", "$oauthtoken|abc||", ""},
		{"netrc picks by user", map[string]string{enroot: "machine a.org login x password y machine a.org login u password p"}, "u@a.org/a", "u|p||", ""},
		{"netrc first", map[string]string{enroot: "machine a.org login u password p machine a.org login x password y"}, "a.org/a", "u|p||", ""},
		{"netrc quotes", map[string]string{enroot: `machine "a.org" login "u" password "p \"\\w"`}, "a.org/a", `u|p "\w||`, ""},
		{"netrc port", map[string]string{enroot: "machine a.org login x password y\nmachine a.org:5000 login u password p"}, "a.org:5000/a", "u|p||", ""},
		{"netrc without port", map[string]string{enroot: "machine A.org login u password p"}, "a.org:5000/a", "u|p||", ""},
		{"netrc Docker Hub", map[string]string{enroot: "machine auth.docker.io login u password p"}, "docker.io/library/a", "u|p||", ""},
		{"netrc default", map[string]string{enroot: "default login u password p\nmachine a.org login x password y"}, "b.org/a", "u|p||", ""},
		{"netrc macro", map[string]string{enroot: "macdef init\nmachine a.org login x password y\n\nmachine a.org login u password p"}, "a.org/a", "u|p||", "line 4"},
		{"netrc code for another machine", map[string]string{enroot: "machine gcr.io login o password $(gcloud auth print-access-token password x)\nmachine a.org login u password p"}, "a.org/a", "u|p||", "line 2"},
		{"netrc a comment between", map[string]string{enroot: "machine a.org\n  # password y\n  login u password p # mine"}, "a.org/a", "u|p||", "line 3"},
		{"netrc another's password is missing", map[string]string{enroot: "machine a.org login u password\nmachine b.org login v password SECRET\n"}, "b.org/a", "v|SECRET||", "line 2"},
		{"netrc another's login is missing", map[string]string{enroot: "machine a.org password p login # none\n\nMACHINE b.org Login v PassWord SECRET\n"}, "b.org/a", "v|SECRET||", "line 3"},
		{"netrc another's quote is open", map[string]string{enroot: "machine a.org login u password \"p \\\nmachine b.org login v password SECRET\n"}, "b.org/a", "v|SECRET||", "line 2"},
		{"netrc another's default", map[string]string{enroot: "machine a.org login u password\ndefault login v password SECRET\n"}, "b.org/a", "v|SECRET||", "line 2"},
		{"netrc without a host", map[string]string{enroot: "machine a.org login u password p\nmachine\nlogin v password SECRET\nmachine \"\" login v password SECRET\n"}, "a.org/a", "u|p||", "line 1"},
		{"netrc without a host is not default", map[string]string{enroot: "machine \"\" login v password SECRET\nmachine\nlogin v password SECRET"}, "a.org/a", "|||", ""},
		{"netrc keywords as values", map[string]string{enroot: "machine a.org login machine password machine\nmachine b.org login v password w\n"}, "a.org/a", "machine|machine||", "line 1"},
		{"netrc default as value", map[string]string{enroot: "machine a.org login login password default"}, "a.org/a", "login|default||", "line 1"},
		{"netrc quoted keywords", map[string]string{enroot: "machine a.org login \"machine\" password\n\"machine\" # x"}, "a.org/a", "machine|machine||", "line 2"},
		{"netrc value in the next line", map[string]string{enroot: "machine\na.org\nlogin\nu\npassword\np"}, "a.org/a", "u|p||", "line 6"},
		{"netrc another user's entry is broken", map[string]string{enroot: "machine a.org login x password\nmachine a.org login u password p"}, "u@a.org/a", "u|p||", "line 2"},
		{"netrc without password", map[string]string{enroot: "machine a.org login u"}, "a.org/a", "|||", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			home(t, c.files)
			got, err := find(t, c.ask)
			if err != nil || show(got) != c.want || !strings.Contains(got.Source, c.from) {
				t.Errorf("%s from %s, %v; want %s from %s", show(got), got.Source, err, c.want, c.from)
			}
		})
	}
}

func TestFindErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"bad JSON", map[string]string{docker: `{"auths":{"a.org":{"auth":"SECRET"}`}, []string{docker, "not valid JSON at byte", "docker login"}},
		{"wrong type", map[string]string{podman: `{"auths":{"a.org":{"password":5551234}}}`}, []string{podman, "JSON number", "podman login"}},
		{"bad base64", map[string]string{docker: `{"auths":{"a.org":{"auth":"SECRET!"}}}`}, []string{docker, "a.org", "base64"}},
		{"no colon", map[string]string{docker: `{"auths":{"a.org":{"auth":"dXA="}}}`}, []string{docker, "base64 of USER:PASSWORD"}},
		{"big file", map[string]string{enroot: strings.Repeat(" ", 1<<20+1)}, []string{enroot, "more than 1048576 bytes"}},
		{"missing helper", map[string]string{docker: `{"credsStore":"gone-1"}`}, []string{"docker-credential-gone-1", docker, "no such program", "install it"}},
		{"helper that is a path", map[string]string{docker: `{"credsStore":"../../bin/sh"}`}, []string{"not the name of a program", "mend credsStore"}},
		{"helper fails", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\nprintf 'keyring\\033is\\nlocked' >&2\necho SECRET\nexit 1"}, []string{"exit status 1: keyring is locked\n", "echo a.org | docker-credential-x get"}},
		{"helper fails and tells", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\necho '{\"Secret\":\"SECRET\"}'\nexit 1"}, []string{"exit status 1"}},
		{"helper says nonsense", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\necho SECRET"}, []string{"not the JSON"}},
		{"helper without end", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\nexec yes SECRET"}, []string{"more than 65536 bytes"}},
		{"helper with a long message", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\nprintf %300d 7 >&2\necho SECRET >&2\nexit 1"}, []string{"exit status 1: 7\n"}},
		{"helper leaves half an answer", map[string]string{docker: `{"credsStore":"x"}`, "bin/docker-credential-x": "#!/bin/sh\nsleep 5 &\necho '{\"Secret\":\"SECRET\"'"}, []string{"not the JSON"}},
		{"no password before another machine", map[string]string{enroot: "machine a.org login u password\nmachine b.org login v password SECRET\n"}, []string{enroot, "line 1: the password has no value, in the entry of a.org", "machine HOST login USER"}},
		{"no login before another machine", map[string]string{enroot: "machine a.org password SECRET login\n\ndefault login v password SECRET\n"}, []string{"line 1: the login has no value"}},
		{"no password in one line", map[string]string{enroot: "machine a.org login u password machine b.org login v password SECRET\n"}, []string{"line 1: the password has no value, or it is"}},
		{"no login in one line", map[string]string{enroot: "machine a.org login machine b.org password SECRET\n"}, []string{"line 1: the login has no value, or it is"}},
		{"no password before default", map[string]string{enroot: "machine a.org login u password default login v password SECRET\n"}, []string{"line 1: there is a second login"}},
		{"second password", map[string]string{enroot: "machine a.org login u password SECRET\nmachin b.org password SECRET\n"}, []string{"line 2: there is a second password"}},
		{"open quote", map[string]string{enroot: "machine a.org login u password \"p\nmachine b.org login v password \"SECRET\"\n"}, []string{"line 1: the password begins with a double quote"}},
		{"code", map[string]string{enroot: "\nmachine a.org login u password $(touch SECRET; echo x)\n"}, []string{enroot, "line 2", "docker login", "credential helper"}},
		{"variable", map[string]string{enroot: "machine a.org login u\npassword $SECRET\n"}, []string{enroot, "line 2", "docker login"}},
		{"quoted code", map[string]string{enroot: `machine a.org login u password "$(SECRET)"`}, []string{enroot, "line 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := home(t, c.files)
			t.Chdir(dir)
			got, err := find(t, "a.org/a/b")
			if err == nil {
				t.Fatalf("found %s", show(got))
			}
			text := fault.Text("gangway", err, false)
			for _, want := range append(c.want, "find credential for a.org") {
				if !strings.Contains(text, want) {
					t.Errorf("%s: lacks %q", text, want)
				}
			}
			if strings.Contains(text, "SECRET") || strings.Contains(text, "5551234") {
				t.Errorf("%s: tells the secret", text)
			}
			if _, err := os.Stat("SECRET"); err == nil {
				t.Error("code was run")
			}
		})
	}
}

// TestOtherFiles: FIFOs do not hang, /dev/null is nothing, a directory is an error.
func TestOtherFiles(t *testing.T) {
	dir := home(t, nil)
	t.Setenv("REGISTRY_AUTH_FILE", os.DevNull)
	if c, err := find(t, "a.org/a"); err != nil || !c.IsZero() {
		t.Errorf("%s: %v, %v", os.DevNull, c, err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", dir)
	if c, err := find(t, "a.org/a"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("directory: %v, %v", c, err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", loop)
	if c, err := find(t, "a.org/a"); err == nil || !strings.Contains(fault.Text("gangway", err, false), "chmod 600 "+loop) {
		t.Errorf("unreadable: %v, %v", c, err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(dir, "x", "y"))
	if c, err := find(t, "a.org/a"); err != nil || !c.IsZero() {
		t.Errorf("missing: %v, %v", c, err)
	}
}

// TestEnvironment: variables name the files, and Looked tells them in order.
func TestEnvironment(t *testing.T) {
	dir := home(t, map[string]string{
		"r.json": `{}`, "run/containers/auth.json": `{}`, "conf/containers/auth.json": `{}`,
		"d/config.json": `{}`, "e/.credentials": "machine a.org login u password p",
	})
	for name, value := range map[string]string{"REGISTRY_AUTH_FILE": "r.json", "XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "conf", "DOCKER_CONFIG": "d", "ENROOT_CONFIG_PATH": "e"} {
		t.Setenv(name, filepath.Join(dir, value))
	}
	if c, err := find(t, "a.org/a"); err != nil || show(c) != "u|p||" {
		t.Errorf("%s, %v", show(c), err)
	}
	if err := os.Remove(filepath.Join(dir, "d/config.json")); err != nil {
		t.Fatal(err)
	}
	want := "r.json run/containers/auth.json conf/containers/auth.json d/config.json (does not exist) e/.credentials"
	got := strings.ReplaceAll(strings.Join(credential.New(credential.Options{}).Looked(), " "), dir+"/", "")
	if got != want {
		t.Errorf("looked into %s, want %s", got, want)
	}
	t.Setenv("HOME", "")
	for _, name := range []string{"REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "ENROOT_CONFIG_PATH"} {
		t.Setenv(name, "")
	}
	if got := credential.New(credential.Options{}).Looked(); len(got) != 0 {
		t.Errorf("without a home looked into %v", got)
	}
}

// TestHelperHangs: a helper that does not answer is ended with its children, by its
// time and by its context.
func TestHelperHangs(t *testing.T) {
	dir := home(t, map[string]string{
		docker: `{"credsStore":"x"}`,
		// The child holds the pipe: waiting for the end of output alone would last an hour.
		"bin/docker-credential-x": "#!/bin/sh\necho started > \"$HOME/started\"\nsleep 3600 &\necho $! > \"$HOME/child\"\nwait\n",
	})
	f := credential.New(credential.Options{HelperTimeout: 300 * time.Millisecond})
	_, err := f.Find(t.Context(), "a.org", "a", "")
	if err == nil || !strings.Contains(err.Error(), "did not answer within 300ms") {
		t.Errorf("time: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "started")); err != nil {
		t.Errorf("the helper was not run: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the user pressed a key")
	time.AfterFunc(100*time.Millisecond, func() { cancel(gone) })
	if _, err := credential.New(credential.Options{}).Find(ctx, "a.org", "a", ""); !errors.Is(err, gone) {
		t.Errorf("context: %v", err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	alive := func() bool { // a zombie that nobody waits for is dead too
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(raw)), "stat"))
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
	for deadline := time.Now().Add(10 * time.Second); alive(); {
		if time.Now().After(deadline) {
			t.Fatal("the helper's child lives on")
		}
	}
}

// TestWarns: of a file that others can read once, and of no other.
func TestWarns(t *testing.T) {
	dir := home(t, map[string]string{enroot: "machine a.org login u password SECRET", docker: "{}"})
	var log bytes.Buffer
	f := credential.New(credential.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ask := func() {
		t.Helper()
		c, err := f.Find(t.Context(), "a.org", "a", "")
		if err != nil || c.IsZero() {
			t.Fatal(c, err)
		}
		slog.New(slog.NewTextHandler(&log, nil)).Debug("found", "credential", c)
	}
	if ask(); log.Len() > 0 {
		t.Errorf("warned: %s", &log)
	}
	if err := os.Chmod(filepath.Join(dir, enroot), 0o644); err != nil {
		t.Fatal(err)
	}
	ask()
	ask()
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "chmod 600 "+filepath.Join(dir, enroot)) {
		t.Errorf("%d warnings: %s", n, &log)
	}
}

// TestSecrets: no way of printing a credential shows them.
func TestSecrets(t *testing.T) {
	c := credential.Credential{Username: "u", Password: "SECRET", IdentityToken: "SECRET", RegistryToken: "SECRET", Source: "file, auths"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "credential", c, "pointer", &c)
	text := fmt.Sprintf("%v %+v %#v %s %q %v %s", c, c, c, c, c, &c, log.String())
	if strings.Contains(text, "SECRET") || strings.Count(text, "u from file, auths") != 8 {
		t.Error(text)
	}
	if got := (credential.Credential{}).String(); got != "no credential" {
		t.Error(got)
	}
	if got := (credential.Credential{RegistryToken: "SECRET", Source: "f"}).String(); got != "a token from f" {
		t.Error(got)
	}
}

// TestHelperLeavesAgent: a helper that starts an agent, which holds its stdout, has
// answered nevertheless.
func TestHelperLeavesAgent(t *testing.T) {
	dir := home(t, map[string]string{
		docker:                    `{"credsStore":"x"}`,
		"bin/docker-credential-x": "#!/bin/sh\nsleep 60 &\necho $! > \"$HOME/agent\"\necho '{\"Username\":\"u\",\"Secret\":\"p\"}'\n",
	})
	c, err := find(t, "a.org/a")
	if err != nil || show(c) != "u|p||" {
		t.Errorf("%s, %v", show(c), err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	agent, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(agent, syscall.SIGKILL); err != nil {
		t.Errorf("the agent was ended: %v", err)
	}
}

// TestHelperInheritsNothing: files that this process got from elsewhere do not go on
// to helpers.
func TestHelperInheritsNothing(t *testing.T) {
	// A high number, and one that is not marked as os.Open marks its own: shells use
	// low ones (dash reads its script as 10).
	fd, err := unix.FcntlInt(0, unix.F_DUPFD, 300)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	home(t, map[string]string{
		docker:                    `{"credsStore":"x"}`,
		"bin/docker-credential-x": fmt.Sprintf("#!/bin/sh\ntest -e /proc/$$/fd/%d && exit 4\necho '{\"Username\":\"u\",\"Secret\":\"p\"}'\n", fd),
	})
	if c, err := find(t, "a.org/a"); err != nil || show(c) != "u|p||" {
		t.Errorf("%s, %v", show(c), err)
	}
}
