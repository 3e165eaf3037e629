package spec

import (
	"bytes"
	"strings"
)

func (b *builder) file(name string, content []byte, mode uint32) {
	b.Files = append(b.Files, File{Path: name, Content: content, Mode: mode})
}

// hostFiles are what the image cannot know of the machine: its names, and its time zone,
// for which an image's link to the file of UTC is no answer.
func (b *builder) hostFiles() {
	b.networkFiles()
	if len(b.h.Localtime) > 0 {
		b.file("/etc/localtime", b.h.Localtime, 0o644)
	}
}

// networkFiles are the host's names: hosts, resolv.conf and hostname.
func (b *builder) networkFiles() {
	b.file("/etc/hosts", hosts(b.h.Hosts, b.h.Hostname), 0o644)
	if len(b.h.ResolvConf) > 0 {
		b.file("/etc/resolv.conf", b.h.ResolvConf, 0o644)
	}
	if validHostname(b.h.Hostname) {
		b.file("/etc/hostname", []byte(b.h.Hostname+"\n"), 0o644)
	}
}

// hosts is the host's file, with localhost if it is not in it. The host's own name
// is added only where the file says nothing at all: elsewhere it may have been left
// to the name service, and a loopback address would keep other nodes from coming
// to a rank that listens by its name.
func hosts(content []byte, hostname string) []byte {
	names := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			for _, name := range f[1:] {
				names[name] = true
			}
		}
	}
	var b bytes.Buffer
	if !names["localhost"] {
		b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	}
	if len(names) == 0 && validHostname(hostname) && hostname != "localhost" {
		b.WriteString("127.0.1.1 " + hostname + "\n")
	}
	b.Write(content)
	if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func validHostname(s string) bool {
	return s != "" && len(s) <= 253 && !hasControl(s) && !strings.ContainsAny(s, " #/")
}

// aptFile keeps apt from changing to a user that the container does not have.
func (b *builder) aptFile() {
	if b.r.RemapRoot && b.root.Exists("/etc/apt") {
		b.file("/etc/apt/apt.conf.d/99gangway-root", []byte("APT::Sandbox::User \"root\";\n"), 0o644)
	}
}
