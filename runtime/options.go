package runtime

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// mountOptions are the options of a mount as the kernel wants them.
type mountOptions struct {
	set         uintptr // MS_*
	bind        bool
	propagation uintptr // MS_SLAVE, ...; 0 leaves it
	data        string
	shown       string
}

// flagOptions are the options that are flags. Those that clear one are the kernel's
// default and change nothing: what is locked could not be cleared anyway.
var flagOptions = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME,
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "nosymfollow": 0x100,
	"rw": 0, "rrw": 0, "suid": 0, "dev": 0, "exec": 0, "atime": 0, "diratime": 0, "async": 0, "defaults": 0, "symfollow": 0,
}

// propagationOptions say what happens to mounts that are made later.
var propagationOptions = map[string]uintptr{
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
	"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
	"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
}

// parseOptions reads the options of an OCI mount.
func parseOptions(typ string, options []string) (mountOptions, error) {
	o := mountOptions{bind: typ == "bind" || typ == "rbind"}
	var data, shown []string
	for _, option := range options {
		if strings.IndexByte(option, 0) >= 0 {
			return o, fmt.Errorf("option %q has a zero byte", option)
		}
		flag, isFlag := flagOptions[option]
		propagation, isPropagation := propagationOptions[option]
		switch {
		case isFlag:
			o.set |= flag
		case isPropagation:
			o.propagation = propagation
		case option == "bind", option == "rbind":
			o.bind = true
			continue
		case strings.HasPrefix(option, "x-"):
			continue // for other programs, as in fstab
		default:
			data = append(data, option)
		}
		shown = append(shown, option)
	}
	if o.bind && len(data) > 0 {
		return o, fmt.Errorf("option %q is none of a bind mount", data[0])
	}
	o.data, o.shown = strings.Join(data, ","), strings.Join(shown, ",")
	return o, nil
}

// attributes are flags as mount_setattr wants them.
func attributes(flags uintptr) (set, clear uint64) {
	for _, f := range []struct {
		ms   uintptr
		attr uint64
	}{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME},
		{0x100, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if flags&f.ms != 0 {
			set |= f.attr
		}
	}
	switch { // one of three, so that another has to be cleared
	case flags&unix.MS_NOATIME != 0:
		return set | unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME
	case flags&unix.MS_STRICTATIME != 0:
		return set | unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME
	}
	return set, 0
}
