package step

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

// machineID is what programs tell machines apart by.
const machineID = "/etc/machine-id"

// maxHostFile bounds what is read of the host's files.
const maxHostFile = 4 << 20

// readHost finds what a container is told of this machine and its user. It asks files
// only: a directory service that has the user is asked through nobody but the
// environment, USER and HOME, which the login has set.
func readHost(environ []string, getenv func(string) string) (spec.Host, error) {
	h := spec.Host{UID: os.Geteuid(), GID: os.Getegid(), Environ: environ}
	var err error
	if h.Cwd, err = os.Getwd(); err != nil {
		h.Cwd = "/" // it was removed; mounts that are relative to it say so
	}
	if h.Hostname, err = os.Hostname(); err != nil {
		return h, err
	}
	passwd, err := hostFile("/etc/passwd")
	if err != nil {
		return h, err
	}
	if f := record(passwd, 2, h.UID, 7); f != nil {
		h.User, h.Home, h.Shell = f[0], f[5], f[6]
	} else {
		h.User, h.Home, h.Shell = getenv("USER"), getenv("HOME"), getenv("SHELL")
	}
	// Who sets HOME means it.
	if home := getenv("HOME"); filepath.IsAbs(home) {
		h.Home = home
	}
	if h.Groups, err = hostGroups(h.GID); err != nil {
		return h, err
	}
	if h.MemTotal, err = memTotal(); err != nil {
		return h, err
	}
	if h.Umask, err = umask(); err != nil {
		return h, err
	}
	if h.Hosts, err = hostFile("/etc/hosts"); err != nil {
		return h, err
	}
	if h.ResolvConf, err = hostFile("/etc/resolv.conf"); err != nil {
		return h, err
	}
	if h.Localtime, err = hostFile("/etc/localtime"); err != nil {
		return h, err
	}
	if st, err := os.Stat(machineID); err == nil && st.Mode().IsRegular() && st.Size() > 0 {
		h.MachineID = machineID
	}
	return h, nil
}

// hostFile reads a file of the host; there is nothing in one that is not there.
func hostFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxHostFile))
}

// addHosts adds lines to a hosts file.
func addHosts(file, lines []byte) []byte {
	if len(lines) == 0 {
		return file
	}
	if len(file) > 0 && !bytes.HasSuffix(file, []byte("\n")) {
		file = append(slices.Clone(file), '\n')
	}
	return append(slices.Clip(file), lines...)
}

// record finds the line of a file as /etc/passwd whose field n is id.
func record(file []byte, n, id, fields int) []string {
	want := strconv.Itoa(id)
	for line := range bytes.Lines(file) {
		f := strings.Split(strings.TrimRight(string(line), "\n"), ":")
		if len(f) == fields && f[n] == want {
			return f
		}
	}
	return nil
}

// groupName is the name of a group in the host's file; empty: it has none.
func groupName(gid int) string {
	file, err := hostFile("/etc/group")
	if err != nil {
		return ""
	}
	if f := record(file, 2, gid, 4); f != nil {
		return f[0]
	}
	return ""
}

// hostGroups returns the groups of this process, the main one first.
func hostGroups(gid int) ([]spec.Group, error) {
	ids, err := os.Getgroups()
	if err != nil {
		return nil, err
	}
	file, err := hostFile("/etc/group")
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for line := range bytes.Lines(file) {
		if f := strings.Split(string(line), ":"); len(f) >= 3 {
			if id, err := strconv.Atoi(f[2]); err == nil {
				names[id] = f[0]
			}
		}
	}
	ids = append([]int{gid}, slices.DeleteFunc(ids, func(id int) bool { return id == gid })...)
	var groups []spec.Group
	for _, id := range ids {
		groups = append(groups, spec.Group{ID: id, Name: names[id]})
	}
	return groups, nil
}

// umask returns this process's without changing it, as umask(2) would for a moment; nil
// where the kernel does not say.
func umask() (*uint32, error) {
	status, err := hostFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(status) {
		if f := strings.Fields(string(line)); len(f) == 2 && f[0] == "Umask:" {
			n, err := strconv.ParseUint(f[1], 8, 32)
			mask := uint32(n)
			return &mask, err
		}
	}
	return nil, nil
}

// memTotal returns the memory of the machine in bytes.
func memTotal() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.Join(s.Err(), errors.New("read /proc/meminfo: no MemTotal"))
}
