package runtime

// ownerCalls are the calls that newer architectures do not have.
func ownerCalls() []uintptr { return nil }
