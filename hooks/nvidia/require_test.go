package nvidia_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// What nvidia/cuda:12.4.1-base-ubuntu22.04 asks for.
const cuda124 = "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470,driver<471 brand=nvidia,driver>=470,driver<471 " +
	"brand=nvidiartx,driver>=470,driver<471 brand=geforce,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536"

func TestRequire(t *testing.T) {
	facts := nvidia.Facts{CUDA: "12.4", Driver: "550.54.15", Arch: "9.0", Brand: "nvidia"}
	old := nvidia.Facts{CUDA: "12.2", Driver: "535.104.05", Arch: "8.0", Brand: "tesla"}
	for _, c := range []struct {
		env  []string
		f    nvidia.Facts
		want string // "" for met, "?" and what is not verified, "!" and what the error says
	}{
		{nil, facts, ""},
		{[]string{"PATH=/bin", "NVIDIA_REQUIRE_CUDA="}, facts, ""},
		{[]string{cuda124}, facts, ""},
		{[]string{cuda124}, old, ""}, // by the branch
		{[]string{cuda124}, nvidia.Facts{CUDA: "12.1", Driver: "530.1", Brand: "tesla"}, "!it requires cuda>=12.4, or brand=tesla with driver>=470 with driver<471, or"},
		{[]string{cuda124}, nvidia.Facts{CUDA: "12.1", Driver: "530.1", Brand: "tesla"}, "!cuda is 12.1, driver 530.1, arch not known, brand tesla"},
		{[]string{cuda124}, nvidia.Facts{CUDA: "12.2", Driver: "535.1"}, "?brand=tesla"},
		{[]string{cuda124, "NVIDIA_DISABLE_REQUIRE=true"}, nvidia.Facts{CUDA: "10.0"}, ""},
		{[]string{cuda124, "NVIDIA_DISABLE_REQUIRE=1"}, nvidia.Facts{CUDA: "10.0"}, ""},
		{[]string{cuda124, "NVIDIA_DISABLE_REQUIRE=false"}, nvidia.Facts{CUDA: "10.0", Driver: "410.1", Brand: "tesla"}, "!NVIDIA_REQUIRE_CUDA is not met"},
		{[]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.10"}, facts, "!12.10"},
		{[]string{"NVIDIA_REQUIRE_CUDA=cuda>12.3.9"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_CUDA=cuda=12.4.0"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_CUDA=cuda==12.4,cuda!=12.5,cuda<=12.4,cuda<13"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_ARCH=arch>=8.0", "NVIDIA_REQUIRE_X=brand!=tesla"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_ARCH=arch>=10.0"}, facts, "!arch 9.0"},
		{[]string{"NVIDIA_REQUIRE_A=cuda>=12", "NVIDIA_REQUIRE_B=cuda>=99"}, facts, "!NVIDIA_REQUIRE_B"},
		{[]string{"NVIDIA_REQUIRE_A=moon=full"}, facts, "?moon=full"},
		{[]string{"NVIDIA_REQUIRE_A=moon=full cuda>=12"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_A=brand<tesla"}, facts, "?brand<tesla"},
		{[]string{"NVIDIA_REQUIRE_A=cuda>=twelve"}, facts, "?cuda>=twelve"},
		{[]string{"NVIDIA_REQUIRE_A=cuda"}, facts, `!"cuda" is no condition`},
		{[]string{"NVIDIA_REQUIRE_A=>=12"}, facts, "!is no condition"},
		{[]string{"NVIDIA_REQUIRE_A=cuda>="}, facts, "!is no condition"},
		{[]string{"NVIDIA_REQUIRE_A=cuda>=<12"}, facts, "!is no condition"},
		{[]string{"NVIDIA_REQUIRE_A=cuda>=12,,cuda>=11"}, facts, "!is no condition"},
		{[]string{"NVIDIA_REQUIRE_JETPACK=csv-mounts=all"}, facts, ""},
		{[]string{"NVIDIA_REQUIRE_A=" + strings.Repeat("cuda>=99 ", 10000)}, facts, "!more than"},
	} {
		open, err := nvidia.Require(c.env, c.f)
		switch {
		case strings.HasPrefix(c.want, "!"):
			wantFault(t, err, nil, c.want[1:])
		case strings.HasPrefix(c.want, "?"):
			if err != nil || !slices.Contains(open, c.want[1:]) {
				t.Errorf("%v: not verified %q, %v", c.env, open, err)
			}
		case err != nil || len(open) > 0:
			t.Errorf("%v: %q, %v", c.env, open, err)
		}
	}
}

// TestRequireProperty compares with a plain reading of the rule, over numbers.
func TestRequireProperty(t *testing.T) {
	holds := map[string]func(a, b int) bool{
		">=": func(a, b int) bool { return a >= b }, "<=": func(a, b int) bool { return a <= b }, ">": func(a, b int) bool { return a > b },
		"<": func(a, b int) bool { return a < b }, "=": func(a, b int) bool { return a == b }, "!=": func(a, b int) bool { return a != b },
	}
	rapid.Check(t, func(r *rapid.T) {
		values := map[string]int{"cuda": rapid.IntRange(9, 13).Draw(r, "cuda"), "driver": rapid.IntRange(9, 13).Draw(r, "driver")}
		text := []string{}
		want := false
		for range rapid.IntRange(1, 4).Draw(r, "alternatives") {
			all, conditions := true, []string{}
			for range rapid.IntRange(1, 3).Draw(r, "conditions") {
				property := rapid.SampledFrom([]string{"cuda", "driver"}).Draw(r, "property")
				op := rapid.SampledFrom([]string{">=", "<=", ">", "<", "=", "!="}).Draw(r, "operator")
				n := rapid.IntRange(9, 13).Draw(r, "value")
				all = all && holds[op](values[property], n)
				conditions = append(conditions, property+op+itoa(n))
			}
			want = want || all
			text = append(text, strings.Join(conditions, ","))
		}
		_, err := nvidia.Require([]string{"NVIDIA_REQUIRE_X=" + strings.Join(text, " ")}, nvidia.Facts{CUDA: itoa(values["cuda"]), Driver: itoa(values["driver"])})
		if (err == nil) != want {
			r.Fatalf("%v with %v: %v", text, values, err)
		}
	})
}

func itoa(n int) string { return string(rune('0'+n/10)) + string(rune('0'+n%10)) }

func FuzzRequire(f *testing.F) {
	f.Add(cuda124)
	f.Add("NVIDIA_REQUIRE_X=cuda>=1.2.3.4.5,brand!=x arch==")
	f.Fuzz(func(t *testing.T, entry string) {
		_, _ = nvidia.Require([]string{entry}, nvidia.Facts{CUDA: "12.4", Driver: "550.1"})
		_, _ = nvidia.Require([]string{"NVIDIA_REQUIRE_X=" + entry}, nvidia.Facts{CUDA: "12.4", Brand: "tesla"})
	})
}

func TestFacts(t *testing.T) {
	for _, c := range []struct {
		version, model string
		want           nvidia.Facts
	}{
		{"580.95.05", "NVIDIA H100 80GB HBM3", nvidia.Facts{CUDA: "13.0", Arch: "9.0"}},
		{"550.54.15", "NVIDIA A100-SXM4-40GB", nvidia.Facts{CUDA: "12.4", Arch: "8.0"}},
		{"470.1", "Tesla T4", nvidia.Facts{CUDA: "11.4", Arch: "7.5", Brand: "tesla"}},
		{"536.1", "NVIDIA GeForce RTX 4090", nvidia.Facts{CUDA: "12.2", Brand: "geforcertx"}},
		{"593.1", "NVIDIA B200", nvidia.Facts{CUDA: "13.1", Arch: "10.0"}},
		{"595.1", "NVIDIA RTX 6000 Ada Generation", nvidia.Facts{Brand: "nvidiartx"}},
		{"300.1", "NVIDIA TITAN V", nvidia.Facts{Brand: "titan"}},
	} {
		d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 2, Version: c.version, Model: c.model}))
		c.want.Driver = c.version
		if got := d.Facts(); got != c.want {
			t.Errorf("%s, %s: %+v, want %+v", c.version, c.model, got, c.want)
		}
	}
}
