package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDeb makes the Debian package and installs, checks, upgrades, removes and purges it on
// a copy of this machine: an overlay that is gone afterwards.
func TestDeb(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs: root, to install a package")
	}
	watchSources(t)
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("make", "deb", "DEB_DIR="+dir)
	found, err := filepath.Glob(filepath.Join(dir, "gangway_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("make deb made %q, %v, want one package", found, err)
	}
	inside := filepath.Join(dir, "inside.sh")
	if err := os.WriteFile(inside, []byte(debInside), 0o755); err != nil {
		t.Fatal(err)
	}
	got := run("unshare", "--mount", "--propagation", "private", "bash", "-euc", debOutside, "bash", found[0], inside)
	for _, want := range []string{
		"gangway v", "slurm 22.05", "removed: /etc/default/gangway-agent\n", // a package that is removed leaves its settings
		"is left in /var/lib/gangway\n", "all well\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the installation did not say %q:\n%s", want, got)
		}
	}
}

// debOutside makes the copy of the machine: $1 is the package, $2 what is run there.
const debOutside = `
root=$(mktemp -d)
mount -t tmpfs none "$root"
mkdir "$root"/{upper,work,merged}
mount -t overlay -o lowerdir=/,upperdir="$root/upper",workdir="$root/work" overlay "$root/merged"
mount -t proc proc "$root/merged/proc"
mount --rbind /dev "$root/merged/dev"
mkdir "$root/merged/deb"
cp "$1" "$root/merged/deb/gangway.deb"
cp "$2" "$root/merged/deb/inside.sh"
chroot "$root/merged" /deb/inside.sh
`

// debInside runs on the copy, where nothing of Gangway is installed.
const debInside = `#!/bin/bash
set -euo pipefail
exec 2>&1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
dpkg -i --force-confnew /deb/gangway.deb
[[ $(dpkg --verify gangway | wc -l) == 0 ]]
gangway version
getent passwd gangway-store
[[ $(command -v gangway) == /usr/bin/gangway ]]
/usr/lib/gangway/slurm/sbatch --version
diff <(gangway slurm install /deb/links >/dev/null 2>&1; ls /deb/links) <(ls /usr/lib/gangway/slurm)
for page in gangway gangway-run gangwayd gangwayd-agent; do gzip -t /usr/share/man/man1/$page.1.gz; done
bash -n /usr/share/bash-completion/completions/gangway
# Whatever it says is a fault, also where it exits with 0.
units=$(ls /lib/systemd/system/gangway-*.service)
said=$(systemd-analyze verify $units 2>&1 | grep gangway || true)
[[ -z $said ]] || { echo "systemd-analyze: $said"; exit 1; }

dpkg -i /deb/gangway.deb >/dev/null # as an upgrade
mkdir -p /var/lib/gangway/controller
dpkg -r gangway
[[ ! -e /usr/bin/gangway ]]
ls /etc/default/gangway-agent | sed 's/^/removed: /'
dpkg -P gangway
[[ -z $(ls /etc/default | grep gangway) && ! -e /usr/lib/gangway && -d /var/lib/gangway/controller ]]
echo all well
`
