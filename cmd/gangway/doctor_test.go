package main

import (
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/launcher/doctor"
)

// TestDoctorRegistries: each server of the configuration and of the command line is asked
// once, as a pull would ask it.
func TestDoctorRegistries(t *testing.T) {
	c := config.Config{Registry: map[string]config.Registry{
		"docker.io":         {Mirrors: []string{"mirror.example:5000/hub", "http://plain.example"}},
		"mirror.example:50": {CA: "/etc/ca.pem", SkipVerify: true},
		"local.example":     {PlainHTTP: true},
		"localhost:5001":    {CA: "/etc/ca.pem"},
	}}
	got := doctorRegistries(c, []string{"127.0.0.1:5000", "docker.io", "other.example"})
	want := []doctor.Registry{
		{Name: "mirror.example:5000", URL: "https://mirror.example:5000"},
		{Name: "plain.example", URL: "http://plain.example"},
		{Name: "docker.io", URL: "https://registry-1.docker.io"},
		{Name: "local.example", URL: "http://local.example"},
		{Name: "localhost:5001", URL: "https://localhost:5001", CAFile: "/etc/ca.pem"},
		{Name: "mirror.example:50", URL: "https://mirror.example:50", CAFile: "/etc/ca.pem", SkipVerify: true},
		{Name: "127.0.0.1:5000", URL: "http://127.0.0.1:5000"},
		{Name: "other.example", URL: "https://other.example"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}
