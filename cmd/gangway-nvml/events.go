//go:build cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// watch implements asker.
func (l *library) watch(uuids []string, beat time.Duration, each func(*report.Event) bool) *report.Failure {
	if f := l.open(); f != nil {
		return f
	}
	gpus, f := l.gpus(uuids)
	if f != nil {
		return f
	}
	set, ret := l.nv.EventSetCreate()
	if ret != nvml.SUCCESS {
		return refused("make a set of events", ret)
	}
	registered := 0
	for _, g := range gpus {
		if g.lost {
			continue
		}
		kinds := get(g, "nvmlDeviceGetSupportedEventTypes", "read events", g.dev.GetSupportedEventTypes)
		if kinds == nil {
			continue
		}
		wanted := *kinds & (nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccError)
		if wanted == 0 {
			continue
		}
		if ret := g.dev.RegisterEvents(wanted, set); ret != nvml.SUCCESS {
			return refused("register for events of "+g.name, ret)
		}
		registered++
	}
	if registered == 0 {
		return &report.Failure{Kind: report.Refused, Text: "no GPU here reports events"}
	}
	for {
		data, ret := set.Wait(uint32(beat.Milliseconds()))
		var event *report.Event
		switch ret {
		case nvml.SUCCESS:
			event = l.event(data)
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			// The other GPUs go on; this one would come back at once each time.
			time.Sleep(beat)
		default:
			return refused("wait for events", ret)
		}
		if !each(event) {
			return nil
		}
	}
}

func (l *library) event(data nvml.EventData) *report.Event {
	e := report.Event{Time: time.Now()}
	if data.Device != nil {
		g := &gpu{l: l, dev: data.Device, name: "the GPU of an event"}
		e.GPU = g.id()
	}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		e.Kind, e.Xid = "xid", data.EventData
	case nvml.EventTypeDoubleBitEccError:
		e.Kind = "ecc-double-bit"
	case nvml.EventTypeSingleBitEccError:
		e.Kind = "ecc-single-bit"
	default:
		e.Kind = "other"
	}
	return &e
}
