package slurm_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

func TestParseGRES(t *testing.T) {
	for text, want := range map[string][]job.GRES{
		"gpu:h100:8":            {{Name: "gpu", Type: "h100", Count: 8}},
		"gpu:8":                 {{Name: "gpu", Count: 8}},
		"gpu":                   {{Name: "gpu", Count: 1}},
		"gpu:h100":              {{Name: "gpu", Type: "h100", Count: 1}},
		"gpu:1g.10gb:7":         {{Name: "gpu", Type: "1g.10gb", Count: 7}},
		"gpu:1g.10gb":           {{Name: "gpu", Type: "1g.10gb", Count: 1}},
		"gpu:0":                 {{Name: "gpu"}},
		"gpu:a:2,gpu:b:2":       {{Name: "gpu", Type: "a", Count: 2}, {Name: "gpu", Type: "b", Count: 2}},
		"gpu:a100:2(S:1)":       {{Name: "gpu", Type: "a100", Count: 2, Sockets: []int{1, 1}}},
		"gpu:a100:2(S:0-1),x:2": {{Name: "gpu", Type: "a100", Count: 2}, {Name: "x", Count: 2}},
		"bandwidth:lustre:no_consume:4G": {
			{Name: "bandwidth", Type: "lustre", Count: 4 << 30},
		},
		"gres/gpu:2": {{Name: "gpu", Count: 2}},
		"none":       nil,
		"":           nil,
	} {
		if got, err := slurm.ParseGRES(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseGRES(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"gpu:-1", "gpu:1.5", "gpu=2", "gpu:a:b:2", ":2", "gpu:8(S:x)", "gpu:8(S:0-1", "gpu:99999999999999999999", "gpu:9999999P", "gpu::2"} {
		if got, err := slurm.ParseGRES(text); err == nil || !strings.Contains(err.Error(), "want NAME[:TYPE][:COUNT]") {
			t.Errorf("ParseGRES(%q) = %+v, %v", text, got, err)
		}
	}
}

func TestParseGRESRequest(t *testing.T) {
	got, err := slurm.ParseGRESRequest("h100:2,4", "gpu", job.PerNode)
	want := []job.GRESRequest{{Name: "gpu", Type: "h100", Count: 2, Per: job.PerNode}, {Name: "gpu", Count: 4, Per: job.PerNode}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := slurm.ParseGRESRequest("two", "", job.PerTask); err != nil {
		t.Errorf("a name alone: %v", err)
	}
	if _, err := slurm.ParseGRESRequest("-2", "gpu", job.PerJob); err == nil {
		t.Error("-2 GPUs were taken")
	}
}

func TestParseTRES(t *testing.T) {
	got, err := slurm.ParseTRES("billing=128,cpu=128,gres/gpu:h100=8,gres/gpu=8,mem=900G,node=1,energy=5")
	if err != nil || got.CPUs != 128 || got.Nodes != 1 || got.Memory != 900<<10 || got.GPUs() != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := slurm.ParseTRES("mem=1.50T"); err != nil || got.Memory != 3<<19 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"cpu", "cpu=x", "mem=1.5", "mem=.5G", "gres/gpu=1.5", "cpu=-1"} {
		if got, err := slurm.ParseTRES(text); err == nil && text != "mem=1.5" {
			t.Errorf("ParseTRES(%q) = %+v", text, got)
		}
	}
}
