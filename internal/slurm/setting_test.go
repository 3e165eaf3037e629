package slurm_test

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// manual has the keys of one of Slurm's manual pages, by the section they are in.
func manual(t *testing.T, page string) map[string][]string {
	t.Helper()
	file, err := os.Open("/usr/share/man/man5/" + page + ".5.gz")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs Slurm's manual pages (Debian: slurm-client)")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]string{}
	section, depth, item := "", 0, false
	key := regexp.MustCompile(`^\\fB([A-Z]\w+)\\f`)
	lines := bufio.NewScanner(unzipped)
	for lines.Scan() {
		text := lines.Text()
		switch {
		case strings.HasPrefix(text, ".SH"):
			section, depth = strings.Trim(strings.TrimPrefix(text, ".SH"), ` "`), 0
		case strings.HasPrefix(text, ".RS"):
			depth++
		case strings.HasPrefix(text, ".RE"):
			depth = max(depth-1, 0)
		}
		if m := key.FindStringSubmatch(text); m != nil && item && depth == 0 {
			keys[section] = append(keys[section], m[1])
		}
		item = strings.TrimSpace(text) == ".TP"
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// sections are those of manual pages that have keys, each with the text of a file that
// has one of them, and how many keys there are in Slurm 22.05.
func sections() []struct {
	page, section, file, text string
	keys                      int
} {
	const node = "NodeName=n9\n"
	return []struct {
		page, section, file, text string
		keys                      int
	}{
		{"slurm.conf", "PARAMETERS", "slurm.conf", "KEY=VALUE\n" + node, 209},
		{"slurm.conf", "NODE CONFIGURATION", "slurm.conf", "NodeName=n1 KEY=VALUE\n", 22},
		{"slurm.conf", "PARTITION CONFIGURATION", "slurm.conf", node + "PartitionName=p KEY=VALUE\n", 41},
		{"slurm.conf", "DOWN NODE CONFIGURATION", "slurm.conf", node + "DownNodes=n9 KEY=VALUE\n", 2},
		{"slurm.conf", "NODESET CONFIGURATION", "slurm.conf", node + "NodeSet=s Nodes=n9 KEY=VALUE\n", 2},
		{"cgroup.conf", "DESCRIPTION", "cgroup.conf", "KEY=VALUE\n", 5},
		{"cgroup.conf", "TASK/CGROUP PLUGIN", "cgroup.conf", "KEY=VALUE\n", 14},
		{"gres.conf", "DESCRIPTION", "gres.conf", "NodeName=n9 Name=gpu KEY=VALUE\n", 9},
		{"topology.conf", "DESCRIPTION", "topology.conf", "SwitchName=s Nodes=n9 KEY=VALUE\n", 3},
	}
}

// lint is what is found of a file that has a key.
func lint(t *testing.T, file, text, key, value string) []slurm.Finding {
	t.Helper()
	files := map[string]string{"slurm.conf": "NodeName=n9\n", file: strings.NewReplacer("KEY", key, "VALUE", value).Replace(text)}
	report, err := slurm.LintFS(dir(files), "slurm.conf")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(report.Findings, func(f slurm.Finding) bool { return !strings.EqualFold(f.Key, key) && !f.Refused })
}

// TestEveryKeyOfTheManual: what becomes of each key of Slurm's manual pages is said, by the
// table or by what it changes. One that means something else here says what.
func TestEveryKeyOfTheManual(t *testing.T) {
	changes := acting()
	for _, s := range sections() {
		keys := manual(t, s.page)[s.section]
		keys = slices.DeleteFunc(keys, func(k string) bool { return strings.HasPrefix(s.text, k) || strings.Contains(s.text, "\n"+k+"=") })
		if len(keys) < s.keys {
			t.Errorf("%s, %s: %d keys, want %d", s.page, s.section, len(keys), s.keys)
		}
		for _, key := range keys {
			silent := true
			for _, value := range []string{"5", "zz"} {
				for _, f := range lint(t, s.file, s.text, key, value) {
					silent = false
					if strings.Contains(f.Text, "unknown") {
						t.Errorf("%s, %s: nothing says what becomes of %s", s.page, s.section, key)
					}
					if f.Text == "" || f.Severity != slurm.SeverityNote && f.Remedy == "" {
						t.Errorf("%s: %+v", key, f)
					}
				}
			}
			if _, ok := changes[s.file][key]; silent && !ok && s.section != "DOWN NODE CONFIGURATION" && s.section != "NODESET CONFIGURATION" {
				t.Errorf("%s, %s: nothing is said of %s, and there is no test that it acts", s.page, s.section, key)
			}
		}
	}
}

// acting are keys that act, in lines before and after which the cluster is another one.
func acting() map[string]map[string]string {
	const p = "PartitionName=p Nodes=n9 "
	return map[string]map[string]string{
		"slurm.conf": {
			"ClusterName": "ClusterName=other", "DefMemPerCPU": "DefMemPerCPU=7\n" + p, "DefMemPerNode": "DefMemPerNode=7\n" + p, "DisableRootJobs": "DisableRootJobs=YES\n" + p,
			"GresTypes": "GresTypes=gpu", "Licenses": "Licenses=a:2", "MaxArraySize": "MaxArraySize=7", "MaxJobCount": "MaxJobCount=7", "MinJobAge": "MinJobAge=7",
			"PlugStackConfig": "PlugStackConfig=gone.conf", "PriorityFavorSmall": "PriorityType=priority/multifactor\nPriorityFavorSmall=YES",
			"PriorityMaxAge": "PriorityType=priority/multifactor\nPriorityMaxAge=1-0", "PriorityType": "PriorityWeightAge=5\nPriorityType=priority/multifactor",
			"PriorityWeightAge": "PriorityType=priority/multifactor\nPriorityWeightAge=9", "PriorityWeightJobSize": "PriorityType=priority/multifactor\nPriorityWeightJobSize=9",
			"PriorityWeightPartition": "PriorityType=priority/multifactor\nPriorityWeightPartition=9", "SchedulerParameters": "SchedulerParameters=max_switch_wait=9",
			"SchedulerType": "SchedulerType=sched/builtin", "SelectType": "SelectType=select/linear\n" + p, "SelectTypeParameters": "SelectTypeParameters=CR_Core\n" + p,
			"TopologyPlugin": "TopologyPlugin=topology/tree", "TreeWidth": "TreeWidth=7",

			"Boards": "NodeName=n1 SocketsPerBoard=1 Boards=2", "CoresPerSocket": "NodeName=n1 CoresPerSocket=2", "CPUs": "NodeName=n1 CPUs=2", "Procs": "NodeName=n1 Procs=2",
			"Features": "NodeName=n1 Features=a", "Gres": "NodeName=n1 Gres=gpu:2", "MemSpecLimit": "NodeName=n1 RealMemory=9 MemSpecLimit=2", "NodeAddr": "NodeName=n1 NodeAddr=a",
			"RealMemory": "NodeName=n1 RealMemory=9", "Reason": "NodeName=n1 State=DOWN Reason=a", "Sockets": "NodeName=n1 Sockets=2", "SocketsPerBoard": "NodeName=n1 SocketsPerBoard=2",
			"State": "NodeName=n1 State=DRAIN", "ThreadsPerCore": "NodeName=n1 ThreadsPerCore=2", "Weight": "NodeName=n1 Weight=5",

			"AllowAccounts": p + "AllowAccounts=a", "AllowGroups": p + "AllowGroups=a", "AllowQos": p + "AllowQos=a", "Default": p + "Default=YES", "DefaultTime": p + "DefaultTime=5",
			"DenyAccounts": p + "DenyAccounts=a", "DenyQos": p + "DenyQos=a", "MaxNodes": p + "MaxNodes=1", "MaxTime": p + "MaxTime=5", "MinNodes": p + "MinNodes=1",
			"Nodes": "PartitionName=p Nodes=n8", "OverSubscribe": p + "OverSubscribe=EXCLUSIVE", "Shared": p + "Shared=EXCLUSIVE", "PriorityJobFactor": p + "PriorityJobFactor=3",
			"PriorityTier": p + "PriorityTier=3", "RootOnly": p + "RootOnly=YES",
		},
		"gres.conf": {
			"Count": "Count=2 Type=x", "Cores": "Cores=0", "File": "File=/dev/nvidia[0-1] Type=x", "Links": "Links=-1,1", "MultipleFiles": "MultipleFiles=/dev/nvidia[0-1] Type=x",
			"Name": "Name=gpu Type=x Count=2", "NodeName": "NodeName=n9 Type=x Count=2", "Type": "Type=x Count=2",
		},
		"topology.conf": {"SwitchName": "SwitchName=a Nodes=n9", "Switches": "SwitchName=a Switches=b\nSwitchName=b Nodes=n9", "Nodes": "SwitchName=a Nodes=n9"},
	}
}

// TestActing: without a key that acts, or with another value, the cluster is another one.
func TestActing(t *testing.T) {
	read := func(file, text string) *slurm.Report {
		const base = "NodeName=n9 CPUs=4 Sockets=2 CoresPerSocket=2 RealMemory=1000 Gres=gpu:2\n"
		files := map[string]string{"slurm.conf": base, "gres.conf": "NodeName=n9 Name=gpu Count=2\n"}
		switch file {
		case "slurm.conf":
			files[file] = base + text
		case "gres.conf":
			files[file] = "NodeName=n9 Name=gpu " + text
		default:
			files[file] = text
		}
		c, loadErr := slurm.LoadFS(dir(files), "slurm.conf")
		r, err := slurm.LintFS(dir(files), "slurm.conf")
		if err != nil {
			t.Fatal(err)
		}
		if loadErr != nil {
			r.Directory = loadErr.Error()
			return r
		}
		c.Warnings, c.Ignored = nil, nil
		r.Directory = fmt.Sprintf("%+v", *c)
		for i := range r.Findings {
			r.Findings[i].Line = 0
		}
		return r
	}
	for file, keys := range acting() {
		for key, text := range keys {
			without := regexp.MustCompile(`(?m)(^|\s)`+key+`=\S*`).ReplaceAllString(text, "$1")
			if i := strings.LastIndex(text, key+"="); strings.Contains(text[:i], key+"=") {
				without = text[:i]
			}
			if key == "Nodes" || file == "gres.conf" && (key == "Name" || key == "NodeName") {
				without = ""
			}
			if file == "gres.conf" && without == "" {
				without = "Count=2"
			}
			a, b := read(file, text), read(file, without)
			if a.Directory == b.Directory && reflect.DeepEqual(a.Findings, b.Findings) {
				t.Errorf("%s: %q is as %q", key, text, without)
			}
		}
	}
}

// TestValuesOfKeysAgainstSlurm: numbers and switches that Slurm's parser refuses are errors, and
// what it takes is none. Both parsers get all keys with each value.
func TestValuesOfKeysAgainstSlurm(t *testing.T) {
	needs(t, "scontrol")
	// Read for what they say, and with narrower limits than the parser's, or later than it does; or lists.
	stricter := "MaxArraySize MaxJobCount MinJobAge PriorityMaxAge PriorityType SchedulerType SelectType TopologyPlugin PriorityWeightAge " +
		"PriorityWeightJobSize PriorityWeightPartition AuthType CredType SelectTypeParameters " +
		"Boards CPUs CoresPerSocket MemSpecLimit Procs RealMemory Sockets SocketsPerBoard ThreadsPerCore Weight State Gres NodeAddr Nodes Default DefaultTime " +
		"MaxNodes MaxTime MinNodes OverSubscribe PriorityJobFactor PriorityTier RootOnly Shared PreemptMode OverTimeLimit BcastExclude SlurmctldHost NodeName PartitionName"
	for _, s := range sections()[:3] {
		keys := manual(t, s.page)[s.section]
		keys = slices.DeleteFunc(keys, func(k string) bool {
			return slices.ContainsFunc(strings.Fields(stricter), func(o string) bool { return strings.EqualFold(k, o) })
		})
		for _, value := range []string{"zz9", "-5", "99999999999", "70000", "7", "1.5", "5k", "5000000k", "UNLIMITED", "yes", "up", "maybe", "0", "0x10", "08", "017", "0b1", "1_0"} {
			theirs := refusedKeys(t, s.text, keys, value)
			for _, key := range keys {
				ours := slices.ContainsFunc(lint(t, s.file, s.text, key, value), func(f slurm.Finding) bool {
					return strings.EqualFold(f.Key, key) && strings.HasPrefix(f.Text, "want ")
				})
				if ours != theirs[strings.ToLower(key)] {
					t.Errorf("%s %s=%s: we refuse it: %v; Slurm does: %v", s.section, key, value, ours, theirs[strings.ToLower(key)])
				}
			}
		}
	}
}

// refusedKeys are those, in lower case, whose value Slurm's parser refuses.
func refusedKeys(t *testing.T, text string, keys []string, value string) map[string]bool {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	var b strings.Builder
	b.WriteString("ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\nNoSuchKey=1\n") // it stops at the last, and asks nobody
	for i, key := range keys {
		b.WriteString(strings.NewReplacer("KEY", key, "VALUE", value, "n9", fmt.Sprintf("n9%d", i), "n1 ", fmt.Sprintf("n1%d ", i)).Replace(text))
	}
	if err := os.WriteFile(conf, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, conf, "scontrol", "show", "config")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "unrecognized key: NoSuchKey") {
		t.Fatalf("scontrol: %v: %s", err, out)
	}
	refused := map[string]bool{}
	for _, form := range []string{`error: (\w+) value \S+ is `, `is not a valid option for "(\w+)"`, `unrecognized key: (\w+)`} {
		for _, m := range regexp.MustCompile(form).FindAllStringSubmatch(string(out), -1) {
			refused[strings.ToLower(m[1])] = true
		}
	}
	return refused
}
