// Package cgroup gives a container a group of its own: limits, statistics, freezing and
// an end that nothing escapes.
//
//	g, err := cgroup.Open(ctx, cgroup.Options{Name: "run-17"}) // takes the best rung there is
//	err = g.Limit(cgroup.Limits{CPUs: 2, Memory: 4 << 30})
//	err = g.Sup().Place(os.Getpid())  // the supervisor and its FUSE server
//	err = g.Ranks().Place(pid)        // the container, before its command starts
//	watch, err := g.Watch()           // tells of running out of memory
//	err = g.Remove(ctx)
//
// A group is a directory with two leaves, because the kernel wants
// processes in leaves only. The supervisor is in "sup" and the container in "ranks", so
// that neither freezing the ranks nor their running out of memory takes what serves their
// root. CPU time and cores are limited for both together; memory, processes, devices, io and
// huge pages for the ranks.
//
// The rungs are: a group made by root; a scope of systemd's user manager; a group that somebody
// delegated to the caller; and none, which leaves affinity and rlimits. A Group on the last
// rung works as well: what cannot be had is in Missing, and never an error. A caller that
// insists asks Rung and Missing, and Refused for the reasons. Version 1, version 2 and both at once are known.
//
// What holds for the caller holds for the group: it is made inside the caller's own, which a
// batch system, a service or a pod may have given limits, hierarchy by hierarchy, and not at
// all where limits of the kernel's would end there (io of version 1). Root's are made at the
// top (gangway/<instance>/<name>) only if root is there, or, in version 2, in a login session
// that has no limits. Inside of others' groups it is the one directory
// gangway-<instance>-<name>, of which nothing is left. There version 2 has no limits of our own
// as long as the caller's group has processes besides the caller.
//
// The methods of a Group, Leaf and Watch may be called by any number of goroutines, except
// that Limit comes before Place, and Remove last. The directories are locked (flock) for
// as long as the Group is open; Sweep removes those that nobody holds.
//
// The package starts no container, knows no GPU, and speaks to systemd only through the
// user manager's socket. It does not use github.com/containerd/cgroups, which its tests
// compare it with: that links Protocol Buffers, logrus and two more libraries, 4.5 MB and
// 1.5 ms of every start; it also logs where it should return, waits without end for a
// freeze, and reads a missing statistic as zero.
package cgroup
