package slurm_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

func TestParseTime(t *testing.T) {
	const bad = -1
	for text, seconds := range map[string]int64{
		"30": 1800, "1:30": 90, "0:3600": 3600, "1:02:03": 3723, "100:00:00": 360000, "2-0": 172800, "1-12": 129600,
		"1-12:30": 131400, "1-12:30:15": 131415, "7-00:00:00": 604800, "168:00:00": 604800,
		"0": math.MaxInt64, "-1": math.MaxInt64, "UNLIMITED": math.MaxInt64, "infinite": math.MaxInt64,
		"": bad, "1d": bad, "1:2:3:4": bad, "1-1:2:3:4": bad, "-5": bad, "1.5": bad, "1:-1": bad, ":": bad, "1-": bad, "+3": bad,
		"99999999999": bad, "99999999999999999999999": bad, "1e3": bad, " 5": bad,
	} {
		d, err := slurm.ParseTime(text)
		want := job.Duration(seconds)
		if seconds > 0 && seconds < math.MaxInt64 {
			want *= job.Second
		}
		if (err != nil) != (seconds == bad) || err == nil && d != want {
			t.Errorf("ParseTime(%q) = %d, %v; want %d s", text, d, err, seconds)
		}
	}
	if got := slurm.Minutes(61 * job.Second); got != 2*job.Minute {
		t.Errorf("61 s are %d ms in whole minutes", got)
	}
	if got := slurm.Minutes(job.Forever); got != job.Forever {
		t.Errorf("forever is %d ms in whole minutes", got)
	}
}

func TestFormatTime(t *testing.T) {
	for d, want := range map[job.Duration]string{
		0: "00:00:00", 17 * job.Second: "00:00:17", 3723 * job.Second: "01:02:03", job.Day: "1-00:00:00",
		100 * job.Hour: "4-04:00:00", job.Forever: "UNLIMITED", -job.Minute: "-00:01:00", 999: "00:00:00",
	} {
		if got := slurm.FormatTime(d); got != want {
			t.Errorf("FormatTime(%d) = %s, want %s", d, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := job.Duration(rapid.Int64Range(1, math.MaxInt32).Draw(t, "seconds")) * job.Second
		if back, err := slurm.ParseTime(slurm.FormatTime(d)); err != nil || back != d {
			t.Fatalf("%d is %s, which is %d, %v", d, slurm.FormatTime(d), back, err)
		}
	})
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"2048000": 2048000, "900G": 900 << 10, "900GB": 900 << 10, "512m": 512, "1T": 1 << 20, "1024K": 1, "1025K": 2, "0": 0,
		"": -1, "1.5G": -1, "1P": -1, "10X": -1, "-1": -1, "G": -1, "GG": -1, "1GG": -1, "1B": -1, "99999999999999999999": -1, "9999999999999T": -1,
	} {
		if got, err := slurm.ParseSize(text); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func FuzzParseTime(f *testing.F) {
	f.Add("1-12:30:15")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := slurm.ParseTime(text); err == nil && d < 0 {
			t.Fatalf("%q is %d", text, d)
		}
		if n, err := slurm.ParseSize(text); err == nil && n < 0 {
			t.Fatalf("%q is %d MiB", text, n)
		}
		if tres, err := slurm.ParseTRES(text); err == nil && (tres.CPUs < 0 || tres.Memory < 0 || tres.GPUs() < 0) {
			t.Fatalf("%q is %+v", text, tres)
		}
		if items, err := slurm.ParseGRES(text); err == nil {
			for _, g := range items {
				if g.Count < 0 || g.Name == "" {
					t.Fatalf("%q is %+v", text, items)
				}
			}
		}
	})
}
