package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// ParseSignal reads a signal by its number, or its name with or without SIG.
func ParseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > 64 {
			return 0, fmt.Errorf("signal %d: there are 1 to 64", n)
		}
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for sig := range syscall.Signal(32) {
		if sig > 0 && SignalName(sig) == name {
			return sig, nil
		}
	}
	return 0, fmt.Errorf("signal %q: unknown", text)
}

// SignalName is a signal's name without SIG, or its number.
func SignalName(s syscall.Signal) string {
	names := [...]string{
		1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1",
		11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP",
		20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH",
		29: "IO", 30: "PWR", 31: "SYS",
	}
	if int(s) > 0 && int(s) < len(names) {
		return names[s]
	}
	return strconv.Itoa(int(s))
}
