package sched

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// filled sets every field of a value, and of what it refers to, to something; the numbers
// differ. What refers to itself is empty below a depth.
func filled(v reflect.Value, n *int64, depth int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			if !f.CanSet() { // a field of this package: not exported
				f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
			}
			filled(f, n, depth)
		}
	case reflect.Slice:
		if depth > 8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			filled(v.Index(i), n, depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			filled(v.Index(i), n, depth)
		}
	case reflect.Pointer:
		if depth > 8 {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), n, depth+1)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n%200) + 1)
	default:
		v.SetInt(-*n % 100)
	}
}

// comesBack writes a value and reads it again.
func comesBack[T any](t *testing.T, each func(*codec, *T)) {
	t.Helper()
	var in, out T
	n := int64(0)
	filled(reflect.ValueOf(&in).Elem(), &n, 0)
	var b bytes.Buffer
	w := &codec{to: &b}
	each(w, &in)
	w.flush()
	r := &codec{buf: b.Bytes(), strings: map[string]string{}}
	each(r, &out)
	if w.err != nil || r.err != nil || len(r.buf) > 0 {
		t.Fatalf("%T: %v, %v, %d bytes are left", in, w.err, r.err, len(r.buf))
	}
	if !reflect.DeepEqual(in, out) {
		t.Errorf("%T is not what was written: a field is missing in saved.go:\n%+v\n%+v", in, in, out)
	}
}

// TestSavedFields: a snapshot has every field of what is saved, those of package job too.
func TestSavedFields(t *testing.T) {
	comesBack(t, (*codec).state)
	comesBack(t, (*codec).job)
	comesBack(t, (*codec).spec)
}

// TestRefusedSnapshots: what is cut off, of another version, changed or goes on is refused.
func TestRefusedSnapshots(t *testing.T) {
	good := someSnapshot(t)
	for want, data := range map[string][]byte{
		"it is none":                  []byte("gob"),
		"it is not whole":             good[:len(good)-1],
		"it is of version 7, not":     append(binary.BigEndian.AppendUint32([]byte(magic), 7), good[12:]...),
		"it is not whole: its sum":    append(bytes.Clone(good[:40]), good[41:]...),
		"3 bytes follow the last job": summed(append(bytes.Clone(good[12:len(good)-4]), 1, 2, 3)),
		"it ends within a value":      summed(good[12 : len(good)-20]),
		"its time is 0":               summed(make([]byte, 100)),
	} {
		if _, err := Restore(bytes.NewReader(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// summed makes a snapshot of what is between its head and its sum.
func summed(body []byte) []byte {
	data := append(binary.BigEndian.AppendUint32([]byte(magic), version), body...)
	return binary.BigEndian.AppendUint32(data, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

// someSnapshot has something of everything.
func someSnapshot(t testing.TB) []byte {
	s := cluster(t, 5, 2)
	apply(t, s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "l", Count: 3}}, Weights: job.Weights{Age: 1000, Size: 10}}})
	array := gpus(1, 4, job.Hour)
	array.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}, Throttle: 2}
	array.Licenses = []job.License{{Name: "l", Count: 1}}
	apply(t, s, job.Submitted{ID: 1, Spec: array})
	apply(t, s, job.Submitted{ID: 5, Spec: gpus(3, 8, job.Hour)})
	later := gpus(1, 1, job.Hour)
	later.Begin, later.Deadline = 1000, job.Time(job.Day)
	apply(t, s, job.Submitted{ID: 6, Spec: later})
	after := gpus(2, 8, job.Hour)
	after.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: 5}, {Type: job.Singleton}}}
	apply(t, s, job.Submitted{ID: 7, Spec: after})
	s.Decide(1)
	apply(t, s, job.Submitted{ID: 8, Spec: gpus(2, 8, 2*job.Hour)})
	s.Decide(2)
	apply(t, s, job.NodeStateSet{At: 3, Node: "n0004", State: job.NodeDrain, Reason: "fan"})
	apply(t, s, job.Ended{At: 3, ID: 1, State: job.Failed, Exit: 1})
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzRestore: no snapshot, however broken, does worse than being refused. The sum is made
// to fit, so that what is behind it is read. What is accepted has one form, and decides.
func FuzzRestore(f *testing.F) {
	whole := someSnapshot(f)
	f.Add(whole[12 : len(whole)-4])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := Restore(bytes.NewReader(summed(body)))
		if err != nil {
			return
		}
		var first, second bytes.Buffer
		if err := s.Snapshot(&first); err != nil {
			t.Fatal(err)
		}
		again, err := Restore(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Snapshot(&second); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("%v; the snapshot of what was restored is another one", err)
		}
		s.Decide(s.Now() + 1)
	})
}
