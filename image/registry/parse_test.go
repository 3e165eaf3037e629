package registry

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
)

func TestParseChallenges(t *testing.T) {
	type params = map[string]string
	for _, test := range []struct {
		header []string
		want   []challenge
	}{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"Basic"}, []challenge{{"basic", params{}}}},
		{[]string{`Bearer realm="https://a/token",service="r",scope="repository:a/b:pull,push"`}, []challenge{
			{"bearer", params{"realm": "https://a/token", "service": "r", "scope": "repository:a/b:pull,push"}},
		}},
		{[]string{`BEARER Realm = "a" , SERVICE=b, realm="second"`}, []challenge{{"bearer", params{"realm": "a", "service": "b"}}}},
		{[]string{`Basic realm="x, Bearer y=\"z\"", Bearer realm=https://a/t`}, []challenge{
			{"basic", params{"realm": `x, Bearer y="z"`}}, {"bearer", params{"realm": "https://a/t"}},
		}},
		{[]string{"Negotiate", `Basic realm="x"`}, []challenge{{"negotiate", params{}}, {"basic", params{"realm": "x"}}}},
		{[]string{`Bearer realm="open`}, []challenge{{"bearer", params{"realm": "open"}}}},
		{[]string{`Bearer realm="a\`}, []challenge{{"bearer", params{"realm": `a\`}}}},
		{[]string{`Bearer realm="a" ; Basic`}, []challenge{{"bearer", params{"realm": "a"}}}},
		{[]string{`=x`, `"Bearer"`, "\x00"}, nil},
	} {
		if got := parseChallenges(test.header); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: %q, want %q", test.header, got, test.want)
		}
	}
	if got := parseChallenges([]string{strings.Repeat("Basic,", 1000)}); len(got) != maxChallenges {
		t.Errorf("%d challenges", len(got))
	}
}

func FuzzParseChallenges(f *testing.F) {
	f.Add(`Bearer realm="https://a/token",service="r",scope="repository:a/b:pull,push"`)
	f.Add(`Basic realm="x, \"y", Bearer realm=b`)
	f.Fuzz(func(t *testing.T, header string) {
		all := parseChallenges([]string{header, header})
		if len(all) > maxChallenges {
			t.Fatalf("%d challenges", len(all))
		}
		for _, c := range all {
			if c.scheme == "" || c.scheme != strings.ToLower(c.scheme) {
				t.Fatalf("scheme %q", c.scheme)
			}
			for k, v := range c.params {
				if k == "" || len(v) > len(header) {
					t.Fatalf("%q=%q", k, v)
				}
			}
		}
	})
}

func TestParseContentRange(t *testing.T) {
	for s, want := range map[string]contentRange{
		"bytes 0-99/200":      {0, 99, 200},
		"bytes 5-5/6":         {5, 5, 6},
		"bytes 0-99/*":        {0, 99, -1},
		"Bytes */200":         {-1, -1, 200},
		" bytes  10-20/100  ": {10, 20, 100},
	} {
		if got, ok := parseContentRange(s); !ok || got != want {
			t.Errorf("%q: %+v, %v", s, got, ok)
		}
	}
	for _, s := range []string{
		"", "bytes", "bytes ", "bytes 0-99", "0-99/200", "items 0-99/200", "bytes 99-0/200", "bytes 0-200/200", "bytes -1-5/9",
		"bytes +0-5/9", "bytes 0-5/9223372036854775808", "bytes */*", "bytes 0-/5", "bytes -5/10", "bytes 0x0-5/9", "bytes 0-5/9/9",
	} {
		if got, ok := parseContentRange(s); ok {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

func FuzzParseContentRange(f *testing.F) {
	f.Add("bytes 0-99/200")
	f.Add("bytes */200")
	f.Fuzz(func(t *testing.T, s string) {
		r, ok := parseContentRange(s)
		if !ok {
			return
		}
		if r.first < 0 && (r.first != -1 || r.last != -1 || r.size < 0) || r.first > r.last || r.size >= 0 && r.last >= r.size {
			t.Fatalf("%q: %+v", s, r)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 3 ": 3 * time.Second, "-1": 0, "x": 0, "1e9": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):       0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`{"errors":[{"code":"NAME_UNKNOWN","message":"no \u001b[2Jsuch"}]}`: "NAME_UNKNOWN: no  [2Jsuch",
		`{"errors":[{"code":"A"},{"message":"b"},{},{"code":"D"}]}`:         "A; b; ",
		`{"details":"incorrect username or password"}`:                      "incorrect username or password",
		`{"error":"invalid_grant","error_description":"old"}`:               "invalid_grant; old",
		`{"errors":"x","details":"y"}`:                                      "y",
		`<html>`:                                                            "",
		``:                                                                  "",
	} {
		if _, got := parseErrors([]byte(raw)); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

func FuzzParseErrors(f *testing.F) {
	f.Add([]byte(`{"errors":[{"code":"NAME_UNKNOWN","message":"no \u001b[2Jsuch"}],"details":"x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		codes, text := parseErrors(raw)
		if len(codes) > maxErrors || len([]rune(text)) > 8*(maxErrorText+60) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("%d codes, %q", len(codes), text)
		}
	})
}

func FuzzReadToken(f *testing.F) {
	f.Add(`{"token":"abc","expires_in":300}`)
	f.Add(`{"access_token":"abc","expires_in":1e300}`)
	f.Fuzz(func(t *testing.T, raw string) {
		token, life, err := readToken(strings.NewReader(raw))
		if err != nil {
			return
		}
		if token == "" || strings.ContainsAny(token, "\r\n") || life <= 0 || life > maxTokenLife {
			t.Fatalf("%q for %v", token, life)
		}
	})
}
