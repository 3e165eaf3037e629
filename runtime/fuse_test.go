package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// loopback serves a directory of the host as an image.
func loopback(dir string) *FUSE {
	return &FUSE{
		Options: func(fd int) string {
			return fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", fd, os.Getuid(), os.Getgid())
		},
		Serve: func(_ context.Context, dev *os.File) error {
			root, err := fs.NewLoopbackRoot(dir)
			if err != nil {
				return err
			}
			server, err := fuse.NewServer(fs.NewNodeFS(root, &fs.Options{}), fmt.Sprintf("/dev/fd/%d", dev.Fd()), &fuse.MountOptions{})
			if err != nil {
				return err
			}
			go func() {
				server.Serve()
				dev.Close()
			}()
			return nil
		},
	}
}

// TestFUSE: a root that this process serves. All of the container's other mounts lie on it.
func TestFUSE(t *testing.T) {
	for _, writable := range []bool{false, true} {
		c := small(t, `cat /etc/motd; echo x >/etc/new; ls /etc; grep ' / ' /proc/self/mountinfo | sed 's/.* - //'`)
		if err := os.WriteFile(c.Root.Dir+"/etc/motd", []byte("welcome\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		c.Root = Root{FUSE: loopback(c.Root.Dir)}
		want := "fuse.gangway gangway ro"
		if writable {
			c.Root.Overlay = &Overlay{}
			want = "new\noverlay overlay rw"
		}
		out, status := output(t, c)
		if status.Code != 0 || !strings.HasPrefix(out, "welcome\n") || !strings.Contains(out, want) {
			t.Errorf("%+v: %s", status, out)
		}
	}
}

// TestServeFails: nothing is left of a container whose image cannot be served.
func TestServeFails(t *testing.T) {
	c := small(t, ``)
	broken := errors.New("broken image")
	c.Root = Root{FUSE: loopback("/")}
	c.Root.FUSE.Serve = func(_ context.Context, dev *os.File) error { dev.Close(); return broken }
	before := descriptors(t)
	if _, err := Prepare(t.Context(), c); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}
