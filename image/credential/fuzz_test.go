package credential

import (
	"strings"
	"testing"
)

func FuzzNetrc(f *testing.F) {
	f.Add("machine a login b password c\ndefault login d password $(e f)\nmacdef g\nx\n\n# h\nmachine \"i\" password \"\\\"\"")
	f.Fuzz(func(t *testing.T, text string) {
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
