package proc_test

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/proc"
)

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "/plain": "/plain", `/a\040b\011c\012d\134e`: "/a b\tc\nd\\e", `/\0400`: "/ 0",
		`/end\04`: `/end\04`, `/\999`: `/\999`, `\134040`: `\040`, `/\777`: `/\777`,
	} {
		if got := proc.Unescape(in); got != want {
			t.Errorf("%q is %q, not %q", in, got, want)
		}
	}
}
