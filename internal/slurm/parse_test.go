package slurm_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

func TestParseMoment(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 30, 15, 0, time.UTC) // a Sunday
	for text, want := range map[string]string{
		"now":                 "2026-03-01T12:30:15",
		"now+1hour":           "2026-03-01T13:30:15",
		"now+60":              "2026-03-01T12:31:15",
		"now + 2 days":        "2026-03-03T12:30:15",
		"now-1w":              "2026-02-22T12:30:15",
		"16:00":               "2026-03-01T16:00:00",
		"12:00":               "2026-03-02T12:00:00",
		"4:30:05pm":           "2026-03-01T16:30:05",
		"04:30 AM":            "2026-03-02T04:30:00",
		"12:15 am":            "2026-03-02T00:15:00",
		"today":               "2026-03-01T00:00:00",
		"tomorrow":            "2026-03-02T00:00:00",
		"tomorrow 8:00":       "2026-03-02T08:00:00",
		"midnight":            "2026-03-02T00:00:00",
		"noon":                "2026-03-02T12:00:00",
		"fika":                "2026-03-01T15:00:00",
		"teatime":             "2026-03-01T16:00:00",
		"elevenses":           "2026-03-02T11:00:00",
		"2026-05-06":          "2026-05-06T00:00:00",
		"2026-05-06T07:08":    "2026-05-06T07:08:00",
		"2026-05-06T07:08:09": "2026-05-06T07:08:09",
		"05/06":               "2026-05-06T00:00:00",
		"05/06/27-01:02":      "2027-05-06T01:02:00",
		"05.06.27":            "2027-05-06T00:00:00",
		"050627":              "2027-05-06T00:00:00",
		"0506":                "2026-05-06T00:00:00",
		"uts1772323200":       "2026-03-01T00:00:00",
		"foo":                 "Invalid time specification (pos=0): foo",
		"16:00 foo":           "Invalid time specification (pos=6): 16:00 foo",
		"now+1fortnight":      "Invalid time specification (pos=4): now+1fortnight",
		"":                    "Invalid time specification (pos=0): ",
		"25:00":               "Invalid time specification (pos=0): 25:00",
		"13/01/26":            "Invalid time specification (pos=0): 13/01/26",
	} {
		at, err := slurm.ParseMoment(text, now)
		got := time.UnixMilli(int64(at)).UTC().Format("2006-01-02T15:04:05")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// encoded is a value as JSON, for comparison, without what is empty.
func encoded(t *testing.T, v any, err error) string {
	t.Helper()
	if err != nil {
		return "!"
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseArray(t *testing.T) {
	for text, want := range map[string]string{
		"0-15:4":     `[{"First":0,"Last":12,"Step":4}] 0`,
		"1,3,5-7":    `[{"First":1,"Last":1,"Step":1},{"First":3,"Last":3,"Step":1},{"First":5,"Last":7,"Step":1}] 0`,
		"[0-9]%3":    `[{"First":0,"Last":9,"Step":1}] 3`,
		"5,1-3,2":    `[{"First":1,"Last":3,"Step":1},{"First":5,"Last":5,"Step":1}] 0`,
		"0-999%10":   `[{"First":0,"Last":999,"Step":1}] 10`,
		"":           "!",
		"x":          "!",
		"3-1":        "!",
		"1-3:0":      "!",
		"1:2":        "!",
		"1%x":        "!",
		"[1":         "!",
		"1,,2":       "!",
		"0-99999999": "!",
		"-1":         "!",
	} {
		a, err := slurm.ParseArray(text)
		got := "!"
		if err == nil {
			got = encoded(t, a.Tasks, nil) + " " + encoded(t, a.Throttle, nil)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestParseDependency(t *testing.T) {
	for text, want := range map[string]string{
		"afterok:1:2,singleton": `{"Any":false,"List":[{"Type":2,"Job":1,"Task":null,"Delay":0},{"Type":2,"Job":2,"Task":null,"Delay":0},{"Type":6,"Job":0,"Task":null,"Delay":0}]}`,
		"afterany:1?after:2+5":  `{"Any":true,"List":[{"Type":1,"Job":1,"Task":null,"Delay":0},{"Type":0,"Job":2,"Task":null,"Delay":300000}]}`,
		"7":                     `{"Any":false,"List":[{"Type":1,"Job":7,"Task":null,"Delay":0}]}`,
		"afternotok:7_3":        `{"Any":false,"List":[{"Type":3,"Job":7,"Task":3,"Delay":0}]}`,
		"aftercorr:7_*":         `{"Any":false,"List":[{"Type":4,"Job":7,"Task":null,"Delay":0}]}`,
		"after":                 "!",
		"foo:1":                 "!",
		"afterok:x":             "!",
		"afterok:1+5":           "!",
		"afterok:1,afterok:2?3": "!",
		"singleton:1":           "!",
		"afterok:0":             "!",
		"":                      "!",
	} {
		d, err := slurm.ParseDependency(text)
		if got := encoded(t, d, err); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// written is a constraint with all its parentheses.
func written(c *job.Constraint) string {
	list := func(begin, sign, end string, all []*job.Constraint) string {
		words := make([]string, len(all))
		for i, x := range all {
			words[i] = written(x)
		}
		return begin + strings.Join(words, sign) + end
	}
	switch {
	case c.And != nil:
		return list("(", "&", ")", c.And)
	case c.Or != nil:
		return list("(", "|", ")", c.Or)
	case c.OneOf != nil:
		return list("[", "|", "]", c.OneOf)
	case c.Count > 0:
		return c.Feature + "*" + encodedInt(c.Count)
	}
	return c.Feature
}

func encodedInt(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestParseConstraint(t *testing.T) {
	for text, want := range map[string]string{
		"a":           "a",
		"a&b|c":       "((a&b)|c)",
		"a,b":         "(a&b)",
		"(a|b)&c":     "((a|b)&c)",
		"[r1|r2]":     "[r1|r2]",
		"[a*2&b*4]":   "(a*2&b*4)",
		"[r1|r2]&gpu": "([r1|r2]&gpu)",
		"a*3":         "a*3",
		"":            "!",
		"a&":          "!",
		"(a":          "!",
		"a)":          "!",
		"a*":          "!",
		"a*0":         "!",
		"a b":         "!",
		strings.Repeat("(", 100) + "a" + strings.Repeat(")", 100): "!",
	} {
		c, err := slurm.ParseConstraint(text)
		got := "!"
		if err == nil {
			got = written(c)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"5": "5", "5_3": "5_3", "5_[1-3]": "5_[1-3]", "5.0": "5.0", "5.batch": "5.batch", "5_3.1": "5_3.1", "5_*": "5", "5_[3]": "5_[3]", "5_[3,5-7:2].0": "5_[3,5-7:2].0", "5_03": "5_3",
		"5_": "!", "5_3-4": "!", "5_3,4": "!", "5_[8": "!", "5_8]": "!", "5_[8-9%1]": "!", "5_[]": "!", "5_4000001": "!",
		"0": "!", "x": "!", "5.x": "!", "5_x": "!", "": "!", "-5": "!",
	} {
		got, err := slurm.ParseTarget(text)
		if s := got.String(); err == nil && s != want || (err != nil) != (want == "!") {
			t.Errorf("%q: %s, %v; want %s", text, s, err, want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]int{"USR1": 10, "SIGUSR1": 10, "usr1": 10, "10": 10, "KILL": 9, "64": 64, "0": 0, "65": 0, "FOO": 0, "": 0, "SIG": 0} {
		if got, err := slurm.ParseSignal(text); int(got) != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
}

func TestCheckScript(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/sh\n":        "",
		"":                   "error: Batch script is empty!",
		" \n\t":              "error: Batch script contains only whitespace!",
		"echo\n":             "error: This does not look like a batch script.  The first",
		"\n#!/bin/sh\n":      "error: This does not look like a batch script.  The first",
		"#!/bin/sh\r\nx\r\n": `error: Batch script contains DOS line breaks (\r\n)`,
		"#!/bin/sh\n\x00":    "error: The Slurm controller does not allow scripts that",
	} {
		got := ""
		if err := slurm.CheckScript([]byte(script)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", script, got, want)
		}
	}
}

func TestEnviron(t *testing.T) {
	environ := []string{"A=1", "B=x,y", "HOME=/h", "PATH=/p", "SLURM_CONF=/c", "SLURM_JOB_ID=5", "SLURM_NTASKS=9", "RANK=1"}
	for _, c := range []struct {
		command slurm.Command
		args    string
		want    string
	}{
		{slurm.Sbatch, "s", "A=1 B=x,y HOME=/h PATH=/p SLURM_CONF=/c RANK=1"},
		{slurm.Sbatch, "--export=ALL,C=3,A=2 s", "B=x,y HOME=/h PATH=/p SLURM_CONF=/c RANK=1 C=3 A=2 SLURM_EXPORT_ENV=ALL,C=3,A=2"},
		{slurm.Sbatch, "--export=NONE s", "HOME=/h SLURM_CONF=/c PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SLURM_EXPORT_ENV=NONE"},
		{slurm.Sbatch, "--export=NIL s", "SLURM_CONF=/c SLURM_EXPORT_ENV=NIL"},
		{slurm.Srun, "--export=B s", "B=x,y SLURM_CONF=/c SLURM_JOB_ID=5 SLURM_NTASKS=9"},
		{slurm.Srun, "--export=A='p,q' s", "SLURM_CONF=/c SLURM_JOB_ID=5 SLURM_NTASKS=9 A=p,q"},
		{slurm.Srun, "--export=NONE s", "SLURM_CONF=/c SLURM_JOB_ID=5 SLURM_NTASKS=9"},
		{slurm.Srun, "s", strings.Join(environ, " ")},
	} {
		o, err := parse(c.command, strings.Fields(c.args), "#!/bin/sh\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		all, err := o.Environ(environ)
		var words []string
		for _, v := range all {
			words = append(words, string(v))
		}
		if got := strings.Join(words, " "); err != nil || got != c.want {
			t.Errorf("%s %s: %v\n%s\nwant\n%s", c.command, c.args, err, got, c.want)
		}
	}
}

// FuzzScript: no script and no option makes the parser fail otherwise than by a refusal
// with an exit code.
func FuzzScript(f *testing.F) {
	f.Add("#!/bin/sh\n#SBATCH -N 2 --time=1:30 \"--job-name=a b\" # c\necho\n", "--begin=now+1hour", "[a*2|b]")
	f.Add("#!/bin/sh\n#SBATCH \\ \n", "--array=1-9%2", "a&(b|c)")
	f.Fuzz(func(t *testing.T, script, arg, constraint string) {
		_, err := parse(slurm.Sbatch, []string{arg, "--constraint=" + constraint, "x"}, script, map[string]string{"SBATCH_SIGNAL": arg})
		if err == nil {
			return
		}
		if text, code := refusal(slurm.Sbatch, err); code == 0 && !strings.Contains(text, "MPI") || text == "" {
			t.Errorf("%q %q: %v", script, arg, err)
		}
	})
}
