package cgroup_test

import (
	"os"
	"strconv"
	"syscall"
)

func pidOf(p process) string { return strconv.Itoa(p.Process.Pid) }

func intoCgroup(dir *os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
}
