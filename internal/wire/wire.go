// Package wire is the contract between controller and agents: the messages of one
// session a node (session.proto), and what both sides agree on besides.
//
// First use: NewControllerClient(conn).Session(ctx) in an agent, RegisterControllerServer
// in a controller. Messages are plain data; a stream has one sender and one receiver at a
// time, as gRPC has it.
//
// The package opens no connection and decides nothing. It is not linked by programs that
// are started once a container.
package wire

import "github.com/gangway-hpc/gangway/internal/job"

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative session.proto

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
