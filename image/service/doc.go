// Package service shares one store of images among the users of a node. The server runs
// as a user of its own, without rights; it alone fetches and converts. A client, which is
// the user's own process, asks for an image; the server asks the registry whether this
// user may have it now, with the user's credentials, and hands over the open files of
// index and layers, read-only. The store's directory is the server's alone.
//
//	s := service.New(service.Options{Store: store, Registry: client})
//	err := s.Serve(ctx, listener)
//
//	c := service.Client{Socket: path, Credentials: finder}
//	h, err := c.Open(ctx, service.Request{Reference: "docker://a.example#team/torch:1"}, nil)
//
// Who asks is what the kernel says (SO_PEERCRED). Both ends talk in frames: a length in 4
// bytes, little endian, and as many bytes of JSON; descriptors come with the length. A
// connection carries one request at a time. While the server works on one, it sends
// progress, and asks for credentials by registry and repository, where a registry demands
// them: they are nowhere but in memory, for as long as the request takes. The connection
// that an image was handed over on keeps the image from garbage collection until it ends.
//
// What is cached is handed over only if the registry lets this user read it now, or did so
// a short time ago (Options.Lease), and only if the same repository has sent it once: who
// knows a digest has no right to what it names (see image.PullOptions.Origin).
package service
