package spec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// standardFlags are the flags of a mount that are one word, each with what it
// decides: two that decide the same contradict each other.
var standardFlags = map[string]string{
	"ro": "write", "rw": "write",
	"suid": "suid", "nosuid": "suid",
	"dev": "dev", "nodev": "dev",
	"exec": "exec", "noexec": "exec",
	"symfollow": "symfollow", "nosymfollow": "symfollow",
	"diratime": "diratime", "nodiratime": "diratime",
	"atime": "atime", "noatime": "atime", "relatime": "atime", "norelatime": "atime", "strictatime": "atime", "nostrictatime": "atime",
	"private": "propagation", "rprivate": "propagation", "slave": "propagation", "rslave": "propagation",
	"shared": "propagation", "rshared": "propagation", "unbindable": "propagation", "runbindable": "propagation",
	"bind": "bind", "rbind": "bind", "x-move": "bind",
	"x-create=dir": "x-create", "x-create=file": "x-create", "x-create=auto": "x-create",
	"x-detach": "x-detach", "nofail": "nofail",
	"defaults": "", "silent": "", "loud": "", // say nothing here
}

// tmpfsData are the words that a tmpfs takes as NAME=VALUE.
var tmpfsData = map[string]string{
	"size": "bytes with or without k, m, g, or a percentage", "nr_blocks": "a number with or without k, m, g",
	"nr_inodes": "a number with or without k, m, g", "mode": "an octal number up to 7777",
	"huge": "never, always, within_size or advise", "mpol": "a memory policy of tmpfs(5)",
}

// setFlags sets what the flags of a mount's third field say.
func (m *Mount) setFlags(words []string) error {
	given := map[string]string{} // what was decided by which word
	var options, data []string
	for _, word := range words {
		name, value, isData := strings.Cut(word, "=")
		if decides, ok := standardFlags[word]; ok {
			if err := m.fits(word, decides, given); err != nil {
				return err
			}
			if given[decides] == "" && keepsOption(word, decides) {
				options = append(options, word)
			}
			given[decides] = word
			continue
		}
		if _, ok := tmpfsData[name]; !ok || !isData {
			return m.unknownFlag(word)
		}
		if m.Type != Tmpfs {
			return m.flagError(word, "it is a flag of tmpfs", "leave it out, or mount tmpfs:"+m.Target)
		}
		if !validData(name, value) {
			return m.flagError(word, "its value is wrong", name+"= takes "+tmpfsData[name])
		}
		data = append(data, word)
	}
	m.Create = strings.TrimPrefix(given["x-create"], "x-create=")
	m.NoFail = given["nofail"] != ""
	m.Options = m.base(given)
	m.Options = append(append(m.Options, options...), data...)
	return nil
}

// keepsOption says whether a word stands in the specification as it was given:
// not those with a place of their own and those that name what the kernel does
// anyway and the specification does not have.
func keepsOption(word, decides string) bool {
	switch decides {
	case "bind", "x-create", "x-detach", "nofail", "":
		return false
	}
	return word != "norelatime" && word != "nostrictatime"
}

// base are the options that a mount has besides those given.
func (m *Mount) base(given map[string]string) []string {
	switch m.Type {
	case Bind:
		if given["bind"] != "" {
			return []string{given["bind"]}
		}
		return []string{"rbind"}
	case Tmpfs:
		var options []string
		if given["suid"] == "" {
			options = append(options, "nosuid")
		}
		if given["dev"] == "" {
			options = append(options, "nodev")
		}
		return options
	}
	return []string{"x-detach"}
}

// fits refuses a flag that means nothing for this type of mount, or the contrary
// of one given before.
func (m *Mount) fits(word, decides string, given map[string]string) error {
	if before := given[decides]; decides != "" && before != "" && before != word {
		return m.flagError(word, "it contradicts "+before, "leave one of them out")
	}
	switch {
	case decides == "":
		return nil
	case m.Type == Umount && decides != "x-detach" && decides != "nofail":
		return m.flagError(word, "umount does not take it", "write umount:"+m.Target)
	case m.Type != Umount && decides == "x-detach":
		return m.flagError(word, "only umount takes it", "write umount:"+m.Target)
	case m.Type == Tmpfs && decides == "bind":
		return m.flagError(word, "a tmpfs does not take it", "leave it out, or mount ./tmpfs for a directory of that name")
	case m.Type == Tmpfs && word == "x-create=file":
		return m.flagError(word, "a tmpfs is a directory", "leave it out")
	}
	return nil
}

func (m *Mount) unknownFlag(word string) error {
	if word == "" {
		return m.flagError(word, "a flag is empty", "remove the + or colon that has nothing after it")
	}
	names := sortedKeys(standardFlags)
	for _, name := range sortedKeys(tmpfsData) {
		names = append(names, name+"=")
	}
	typed, _, isData := strings.Cut(word, "=")
	if isData {
		typed += "="
		if strings.HasPrefix(word, "x-create=") {
			typed = word
		}
	}
	return m.flagError(word, "no such flag", didYouMean(typed, names))
}

func (m *Mount) flagError(word, what, hint string) error {
	return fault.Usage(fmt.Errorf("mount %q: flag %q: %s", shorten(m.Text), shorten(word), what), hint)
}

func validData(name, value string) bool {
	switch name {
	case "mode":
		n, err := strconv.ParseUint(value, 8, 32)
		return err == nil && n <= 0o7777
	case "huge":
		return value == "never" || value == "always" || value == "within_size" || value == "advise"
	case "mpol":
		return value != "" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789-=:") == ""
	}
	units := "kKmMgG"
	if name == "size" {
		units += "%"
	}
	digits := value
	if value != "" && strings.Contains(units, value[len(value)-1:]) {
		digits = value[:len(value)-1]
	}
	if strings.Trim(digits, "0123456789") != "" {
		return false
	}
	_, err := strconv.ParseInt(digits, 10, 64)
	return err == nil
}
