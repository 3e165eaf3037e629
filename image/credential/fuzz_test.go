package credential

import (
	"strings"
	"testing"
)

func FuzzNetrc(f *testing.F) {
	f.Add("machine a login b password c\ndefault login d password $(e f)\nmacdef g\nx\n\n# h\nmachine \"i\" password \"\\\"\"")
	for _, s := range []string{"password", "machine a login", "machine", "machine \"", "machine a password \"b\\", "machine a login b password $(", "a # b", "account"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkApart(t, text)
		lines := 1 + strings.Count(text, "\n")
		for _, m := range parseNetrc(text) {
			if m.line < 0 || m.line > lines {
				t.Errorf("line %d of %d", m.line, lines)
			}
			// What Enroot would run is never taken for a password.
			if strings.HasPrefix(m.password, "$") && !m.shell {
				t.Errorf("password %q is not seen to be code", m.password)
			}
		}
	})
}

// checkApart proves that whatever stands before an entry does not get its secret,
// and that whatever stands behind one does not either.
func checkApart(t *testing.T, text string) {
	t.Helper()
	const first, last = "FIRST-SECRET", "LAST-SECRET"
	if strings.Contains(text, first) || strings.Contains(text, last) {
		return
	}
	kept := map[string]bool{}
	for _, m := range parseNetrc("machine first.example login u password " + first + "\n" + text + "\nmachine last.example login v password " + last + "\n") {
		for secret, host := range map[string]string{first: "first.example", last: "last.example"} {
			has := strings.Contains(m.login+m.password, secret)
			if has && m.host != host {
				t.Errorf("%q has the secret of %s", m.host, host)
			}
			kept[host] = kept[host] || has && m.password == secret
		}
	}
	if !kept["first.example"] || !kept["last.example"] && !strings.Contains(strings.ToLower(text), "macdef") {
		t.Errorf("the machines lost their secrets: %v", kept)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"a/b":{}},"credHelpers":{"c":"d"},"credsStore":"e"}`), "docker.io")
	f.Fuzz(func(t *testing.T, raw []byte, host string) {
		c, err := decodeConfig(raw)
		if err != nil {
			return
		}
		e, ok := lookUp(c.Auths, canonical(host), canonicalKey)
		if again, same := lookUp(c.Auths, canonical(host), canonicalKey); again != e || same != ok {
			t.Error("two answers")
		}
		if got, err := e.credential("f"); err == nil && strings.Contains(got.String(), e.Password) && len(e.Password) > 20 && !strings.Contains(got.Username, e.Password) {
			t.Errorf("%s tells the secret", got)
		}
	})
}
