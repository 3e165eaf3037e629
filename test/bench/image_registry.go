package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

// registry is Debian's docker-registry on loopback, with its storage in the
// scratch directory.
type registry struct {
	ctx  context.Context
	host string // HOST:PORT
	cmd  *exec.Cmd
}

// descriptor and manifest are of OCI's image-spec, as much as is needed here.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func (b *bench) startRegistry() (*registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		return nil, err
	}
	r := &registry{ctx: b.ctx, host: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	config := filepath.Join(b.dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n",
		filepath.Join(b.dir, "registry"), r.host)
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		return nil, err
	}
	r.cmd = exec.CommandContext(b.ctx, "docker-registry", "serve", config)
	var errs bytes.Buffer
	r.cmd.Stderr = &errs
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for range 100 {
		if _, err = r.do(http.MethodGet, "/v2/", "", nil); err == nil {
			return r, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.stop()
	return nil, fmt.Errorf("docker-registry does not answer: %w: %s", err, errs.String())
}

func (r *registry) stop() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// ref is the reference of NAME:TAG for all clients.
func (r *registry) ref(name string) string { return r.host + "/" + name }

// do makes a request, and returns the body or, of an upload that begins, its place.
func (r *registry) do(method, path, contentType string, body io.Reader) (string, error) {
	if path[0] == '/' {
		path = "http://" + r.host + path
	}
	req, err := http.NewRequestWithContext(r.ctx, method, path, body)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", typeManifest)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode >= 300 {
		return "", fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, raw)
	}
	if resp.StatusCode == http.StatusAccepted {
		return resp.Header.Get("Location"), nil
	}
	return string(raw), nil
}

func (r *registry) manifest(repository, tag string) (m manifest, err error) {
	raw, err := r.do(http.MethodGet, "/v2/"+repository+"/manifests/"+tag, "", nil)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal([]byte(raw), &m)
}

// push pushes a blob whose digest and size are known.
func (r *registry) push(repository string, d descriptor, blob io.Reader) error {
	place, err := r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	u, err := url.Parse(place)
	if err != nil {
		return err
	}
	q := u.Query()
	q.Set("digest", d.Digest)
	u.RawQuery = q.Encode()
	_, err = r.do(http.MethodPut, u.String(), "application/octet-stream", blob)
	return err
}

func (r *registry) pushBytes(repository, mediaType string, raw []byte) (descriptor, error) {
	d := descriptor{mediaType, fmt.Sprintf("sha256:%x", sha256.Sum256(raw)), int64(len(raw))}
	return d, r.push(repository, d, bytes.NewReader(raw))
}

// pushImage pushes an image of layers that the registry has in the repository.
func (r *registry) pushImage(repository, tag string, layers []descriptor, diffIDs []string) error {
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": "amd64", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return err
	}
	d, err := r.pushBytes(repository, typeConfig, config)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(manifest{2, typeManifest, d, layers})
	if err != nil {
		return err
	}
	_, err = r.do(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, typeManifest, bytes.NewReader(raw))
	return err
}

// mount makes a blob of one repository one of another too.
func (r *registry) mount(from, repository, digest string) error {
	_, err := r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?mount="+digest+"&from="+from, "", nil)
	return err
}

// proxy stands before the registry and counts.
type proxy struct {
	registry
	server          *http.Server
	requests, bytes atomic.Int64
}

func (r *registry) proxy() (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{registry: registry{ctx: r.ctx, host: l.Addr().String()}}
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.host})
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.requests.Add(1)
		to.ServeHTTP(&counting{w, &p.bytes}, req)
	})}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

// close makes the proxy unreachable.
func (p *proxy) close() error {
	err := p.server.Close()
	if c, derr := net.Dial("tcp", p.host); derr == nil {
		_ = c.Close()
		return errors.New("the proxy is still there")
	}
	return err
}

// counting counts the bytes of bodies.
type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }
