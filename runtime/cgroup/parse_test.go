package cgroup

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/fault"
)

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"16G": 16 << 30, "512M": 512 << 20, "512MiB": 512 << 20, "512mb": 512 << 20, "1.5g": 3 << 29, "4000": 4000 << 20,
		"2048K": 2 << 20, "1T": 1 << 40, " 1G ": 1 << 30, "1048576B": 1 << 20, "1": 1 << 20,
	} {
		if got, err := ParseMemory(text); got != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "12Q", "G", "-1G", "+1G", "0", "0G", "1e3", "0x10", "1GG", "1Gi1", "inf", "nan", "1 000", "9999999P", "1_0", "10B", "1.2.3", "bG", "1iB", "１G"} {
		got, err := ParseMemory(text)
		if err == nil {
			t.Errorf("%q: %d, want an error", text, got)
			continue
		}
		if fault.Code(err) != fault.CodeUsage || !strings.Contains(fault.Text("gangway", err, false), "--mem=16G") {
			t.Errorf("%q: %v says not what is valid", text, err)
		}
	}
}

func TestParseOthers(t *testing.T) {
	for text, want := range map[string]float64{"1": 1, "0.5": 0.5, "64": 64, " 2 ": 2, "0.01": 0.01} {
		if got, err := ParseCPUs(text); got != want || err != nil {
			t.Errorf("CPUs %q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "NaN", "Inf", "1e9", "0x4", "0.001", "1,5", "99999999"} {
		if got, err := ParseCPUs(text); err == nil || fault.Code(err) != fault.CodeUsage {
			t.Errorf("CPUs %q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]int64{"1": 1, "4096": 4096, "max": 0, "unlimited": 0} {
		if got, err := ParsePids(text); got != want || err != nil {
			t.Errorf("pids %q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "12Q", "1.5", "99999999999"} {
		if got, err := ParsePids(text); err == nil || fault.Code(err) != fault.CodeUsage {
			t.Errorf("pids %q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a", "1-", "-1", "3-1", "1,,2", ",", "0-99999999", "1;2", "1-2-3", "0-65535,0-65535,0-1"} {
		if got, err := ParseSet(text); err == nil || fault.Code(err) != fault.CodeUsage {
			t.Errorf("set %q: %d numbers, %v", text, len(got), err)
		}
	}
}

// TestSet: what a set is written as is read as the same set.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOf(rapid.IntRange(0, 300)).Draw(t, "numbers")
		var parts []string
		for _, n := range numbers {
			parts = append(parts, Set{n}.String())
		}
		got, err := ParseSet(strings.Join(parts, ","))
		slices.Sort(numbers)
		want := Set(slices.Compact(numbers))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
		again, err := ParseSet(want.String())
		if err != nil || !slices.Equal(again, want) {
			t.Fatalf("%q: %v, %v", want.String(), again, err)
		}
	})
	if s := (Set{0, 1, 2, 3, 8}).String(); s != "0-3,8" {
		t.Error(s)
	}
}

func TestCheck(t *testing.T) {
	m := Machine{CPUs: Set{0, 1, 2, 3}, Mems: Set{0}, Memory: 8 << 30}
	for _, c := range []struct {
		l    Limits
		want string // in the message; "" is none
	}{
		{Limits{}, ""},
		{Limits{CPUs: 4, CPUSet: Set{0, 1, 2, 3}, Mems: Set{0}, Memory: 8 << 30, Swap: Unlimited}, ""},
		{Limits{CPUs: 5}, "use 4 CPUs"},
		{Limits{CPUSet: Set{3, 4, 9}}, "use CPUs 4,9"},
		{Limits{CPUs: 2, CPUSet: Set{1}}, "the CPU set 1 has 1"},
		{Limits{Mems: Set{1}}, "has the nodes 0"},
		{Limits{Memory: 9 << 30}, "--mem=8192M"},
		{Limits{Swap: 1 << 30}, "memory has no limit"},
	} {
		err := c.l.Check(m)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(fault.Text("gangway", err, false), c.want)) {
			t.Errorf("%+v: %v, want %q", c.l, err, c.want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 3 << 29: "1.5 GiB", Unlimited: "unlimited", 64 << 20: "64 MiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"16G", "0-3,8", "1.5", "12Q", "max", "8:0 rbytes=1 wbytes=2", "some avg10=0.00 total=5"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseMemory(text); err == nil && (n < 1<<20 || n > 1<<62) {
			t.Errorf("memory %d", n)
		}
		if n, err := ParseCPUs(text); err == nil && !(n >= 0.01 && n <= maxSet) {
			t.Errorf("CPUs %v", n)
		}
		if n, err := ParsePids(text); err == nil && (n < 0 || n > 1<<22) {
			t.Errorf("pids %d", n)
		}
		if s, err := ParseSet(text); err == nil {
			again, err := ParseSet(s.String())
			if err != nil || !slices.Equal(s, again) {
				t.Errorf("set %v, written and read %v, %v", s, again, err)
			}
		}
		parsePressure(text)
		parseIO1(text)
		parseIO2(text)
		parsePairs(text)
		parseNumber(text)
	})
}
