package agent

import (
	"encoding/json"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// The messages that a life makes.

func (l life) sayProgress(bytes, total int64) sayDo {
	return sayDo{&wire.AgentMessage{Message: &wire.AgentMessage_Progress{Progress: &wire.Progress{
		Key: wire.KeyOf(l.key), Phase: l.doing, Bytes: bytes, Total: total,
	}}}}
}

func (l life) sayPrepared() sayDo {
	return sayDo{&wire.AgentMessage{Message: &wire.AgentMessage_Prepared{Prepared: &wire.Prepared{
		Key: wire.KeyOf(l.key), Image: l.prepared.Image, Port: int32(l.prepared.Port), Notes: l.prepared.Notes,
	}}}}
}

func (l life) sayStarted() sayDo {
	return sayDo{&wire.AgentMessage{Message: &wire.AgentMessage_Started{Started: &wire.Started{
		Key: wire.KeyOf(l.key),
	}}}}
}

func (l life) saySignalled(id uint64) sayDo {
	return sayDo{&wire.AgentMessage{Message: &wire.AgentMessage_Signalled{Signalled: &wire.Signalled{
		Key: wire.KeyOf(l.key), Id: id,
	}}}}
}

func (l life) sayEnded() sayDo {
	say := sayEnd(l.end)
	if l.refused {
		say.message.GetEnded().Drain = prologError
	}
	return say
}

func sayEnd(end job.StepEnd) sayDo {
	return sayDo{&wire.AgentMessage{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: mustJSON(end)}}}}
}

// mustJSON is for plain data of package job, which always has a JSON form.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
