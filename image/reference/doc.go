// Package reference parses what people write to name an image.
//
// The forms are those of Docker, of Enroot and Pyxis, and of skopeo's local files;
// [Parse] lists them. Parsing is pure: it looks at no file and asks no registry, so
// that a path is a [Path] whether it is an image file, a directory or nothing.
//
// [Reference.String] gives the canonical form, which parses to the same Reference
// again; [Reference.Familiar] gives the short one that people are shown.
package reference
