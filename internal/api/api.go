// Package api is the public contract of the controller, HTTP with JSON: its requests and
// answers (types.go), and a client.
//
// First use: [Find] a cluster, [Dial] it, and call a method of the [Client]. A Client may be
// used by any number of goroutines. The package does not say how answers look to people,
// and links nothing but the standard library's HTTP.
package api
