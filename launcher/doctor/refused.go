package doctor

import "syscall"

// Refused says why this machine refused something to an ordinary user's namespaces, and
// the command that mends it: creating them, or, with late, what was to be done in one.
func Refused(errno syscall.Errno, late bool) (cause, remedy string) {
	f := readFacts("")
	r := f.created(errno)
	if errno == syscall.ENOSPC && f.sysctl("user.max_user_namespaces") != "0" {
		// The others are created by the same call.
		if kind := f.noneAllowed(); kind != "" {
			r = f.limit(kind)
		}
	}
	if late {
		r = f.late(errno)
	}
	return r.cause, r.remedy
}
