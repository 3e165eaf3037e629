// Package wire is the contract between controller and agents: the messages of one
// session a node (session.proto), what agents pass on for each other (tree.proto), and what
// both sides agree on besides.
//
// First use: NewControllerClient(conn).Session(ctx) in an agent, RegisterControllerServer
// in a controller. Messages are plain data; a stream has one sender and one receiver at a
// time, as gRPC has it.
//
// The package opens no connection and decides nothing. It is not linked by programs that
// are started once a container.
package wire

import "github.com/gangway-hpc/gangway/internal/job"

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative session.proto tree.proto

// Protocol is the number of this contract. It goes up with each change that an older side
// does not understand.
const Protocol = 3

// KeyOf and its contrary, [StepKey.Of], change between a key and its message.
func KeyOf(k job.StepKey) *StepKey {
	return &StepKey{Job: uint32(k.Job), Attempt: int32(k.Attempt), Step: int32(k.Step), Try: int32(k.Try)}
}

// Of is the key of a message; of nil it is the zero key, which no step has.
func (x *StepKey) Of() job.StepKey {
	return job.StepKey{Job: job.ID(x.GetJob()), Attempt: int(x.GetAttempt()), Step: job.StepID(x.GetStep()), Try: int(x.GetTry())}
}

// JobOf is the job that a command is of, and 0 for what is the cluster's; false: it is of the
// session, and does not go by way of others.
func JobOf(m *ControllerMessage) (job.ID, bool) {
	switch m := m.Message.(type) {
	case *ControllerMessage_Prepare:
		return m.Prepare.Key.Of().Job, true
	case *ControllerMessage_Start:
		return m.Start.Key.Of().Job, true
	case *ControllerMessage_Renew:
		return m.Renew.Key.Of().Job, true
	case *ControllerMessage_Signal:
		return m.Signal.Key.Of().Job, true
	case *ControllerMessage_Kill:
		return m.Kill.Key.Of().Job, true
	case *ControllerMessage_EndedAck:
		return m.EndedAck.Key.Of().Job, true
	case *ControllerMessage_Release:
		return job.ID(m.Release.Job), true
	case *ControllerMessage_Gather:
		return 0, true
	}
	return 0, false
}

// AnsweredOf is the job that an answer is of, and 0 for a heartbeat; false: it is of none.
func AnsweredOf(m *AgentMessage) (job.ID, bool) {
	switch m := m.Message.(type) {
	case *AgentMessage_Heartbeat:
		return 0, true
	case *AgentMessage_Progress:
		return m.Progress.Key.Of().Job, true
	case *AgentMessage_Prepared:
		return m.Prepared.Key.Of().Job, true
	case *AgentMessage_Started:
		return m.Started.Key.Of().Job, true
	case *AgentMessage_Ended:
		return m.Ended.Key.Of().Job, m.Ended.Key != nil
	case *AgentMessage_Signalled:
		return m.Signalled.Key.Of().Job, true
	case *AgentMessage_Cleaned:
		return job.ID(m.Cleaned.Job), true
	}
	return 0, false
}
