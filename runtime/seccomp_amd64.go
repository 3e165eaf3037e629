package runtime

import "golang.org/x/sys/unix"

// ownerCalls are the calls that newer architectures do not have.
func ownerCalls() []uintptr { return []uintptr{unix.SYS_CHOWN, unix.SYS_LCHOWN} }
