package fork

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxLine is how long a line of a list of mounts may be: two paths, each of whose bytes may
// be written as four, and more.
const maxLine = 64 << 10

// mountList is what reading a list of mounts takes.
type mountList struct {
	name    uintptr // of the list, from a /proc
	buf     []byte
	addr    uintptr // of buf
	link    int     // which of the links
	linkPtr uintptr
}

// listMounts makes room for a list of mounts.
func (m *Machine) listMounts() {
	l := &mountList{name: m.bytes([]byte("self/mountinfo\x00")), buf: make([]byte, maxLine), link: len(m.links)}
	link := new([32]byte)
	copy(link[:], linkName)
	m.links = append(m.links, link)
	l.addr, l.linkPtr = uintptr(unsafe.Pointer(unsafe.SliceData(l.buf))), uintptr(unsafe.Pointer(link))
	m.mounts = l
}

// remount adds flags to those that a mount has: they are locked, and without them the
// call is refused. link is the descriptor's name; the working directory is a /proc.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) remount(fd, flags, link uintptr) (errno uintptr) {
	if _, errno = sys(unix.SYS_FSTATFS, fd, m.fsAddr, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	has := uintptr(m.statfs[10])
	flags |= has & (unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME)
	if has&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	_, errno = sys(unix.SYS_MOUNT, 0, link, 0, unix.MS_REMOUNT|unix.MS_BIND|flags, 0, 0)
	return errno
}

// remountBelow is for kernels without mount_setattr: what is mounted below a mount keeps its
// own flags, so that a read-only one would be read-only at its top only. The mounts are
// those of this process's list at this moment.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) remountBelow(c *code) (errno uintptr) {
	if errno = m.remount(m.regs[c.arg[0]], c.arg[1], c.arg[2]); errno != 0 {
		return errno
	}
	n, errno := sys(unix.SYS_READLINKAT, atFDCWD, c.arg[2], m.pageAddr, uintptr(len(m.page)), 0, 0)
	if errno == 0 && n >= uintptr(len(m.page)) {
		errno = uintptr(syscall.ENAMETOOLONG)
	}
	if errno != 0 {
		return errno
	}
	list, errno := sys(unix.SYS_OPENAT, atFDCWD, m.mounts.name, unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	errno = m.readMounts(list, n, c.arg[1])
	sys(unix.SYS_CLOSE, list, 0, 0, 0, 0, 0)
	return errno
}

// readMounts remounts what a list names below the first n bytes of the page.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) readMounts(list, n, flags uintptr) uintptr {
	l := m.mounts
	have := uintptr(0)
	for {
		if have == uintptr(len(l.buf)) {
			return uintptr(syscall.ENAMETOOLONG)
		}
		got, errno := sys(unix.SYS_READ, list, l.addr+have, uintptr(len(l.buf))-have, 0, 0, 0)
		if errno == uintptr(syscall.EINTR) {
			continue
		}
		if errno != 0 || got == 0 {
			return errno
		}
		have += got
		begin := uintptr(0)
		for i := begin; i < have; i++ {
			if l.buf[i] != '\n' {
				continue
			}
			if errno := m.remountLine(begin, i, n, flags); errno != 0 {
				return errno
			}
			begin = i + 1
		}
		for i := begin; i < have; i++ {
			l.buf[i-begin] = l.buf[i]
		}
		have -= begin
	}
}

// remountLine remounts what a line of the list is about, if its name, the fifth word, is below
// the first n bytes of the page.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) remountLine(i, end, n, flags uintptr) (errno uintptr) {
	buf := m.mounts.buf
	for words := 0; i < end && words < 4; i++ {
		if buf[i] == ' ' {
			words++
		}
	}
	// The name as it is, in its own place, which is never shorter.
	begin, to := i, i
	for ; i < end && buf[i] != ' '; i++ {
		ch := buf[i]
		if ch == '\\' && i+3 < end {
			ch = (buf[i+1]-'0')<<6 | (buf[i+2]-'0')<<3 | (buf[i+3] - '0')
			i += 3
		}
		buf[to] = ch
		to++
	}
	if to <= begin+n || n > 1 && buf[begin+n] != '/' {
		return 0
	}
	for k := range n {
		if buf[begin+k] != m.page[k%uintptr(len(m.page))] {
			return 0
		}
	}
	buf[to] = 0
	fd, errno := sys(unix.SYS_OPENAT, atFDCWD, m.mounts.addr+begin, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
	switch syscall.Errno(errno) {
	case 0:
	case syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES:
		return 0 // where this process is led to nothing, so is the container
	default:
		return errno
	}
	m.format(uintptr(m.mounts.link), fd, len(linkName))
	errno = m.remount(fd, flags, m.mounts.linkPtr)
	sys(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	if errno == uintptr(syscall.EINVAL) {
		return 0 // no mount: another one lies over it
	}
	return errno
}
