package layer

import (
	"context"
	"errors"
	"fmt"

	"github.com/gangway-hpc/gangway/squashfs"
)

// CheckOptions say what Check does. The zero value checks everything.
type CheckOptions struct {
	// SkipSquashfs leaves out squashfs.Check, which decodes every block: the checksum,
	// which is always proved, says already that they are as they were written.
	SkipSquashfs bool
}

// Check proves that an artefact is what Convert wrote, and that its parts fit:
//
//   - the checksums of both parts;
//   - all that squashfs.Check proves;
//   - every record of the TOC can be decoded, and the counts of its head are right;
//   - every file that has content has an inode of its own, with the right size,
//     and every inode that has content belongs to such a file.
//
// Errors wrap ErrCorrupt or squashfs.ErrCorrupt, or are of reading and of ctx.
func Check(ctx context.Context, l *Layer, o CheckOptions) error {
	sum, err := checksum(ctx, l.src, int64(l.head.squashfsSize))
	if err != nil {
		return fmt.Errorf("check layer: read squashfs: %w", err)
	}
	var problems []error
	if sum != l.head.squashfsSum {
		problems = append(problems, corrupt("the checksum of the squashfs part is wrong"))
	}
	if !o.SkipSquashfs {
		if err := squashfs.Check(ctx, l.sq, squashfs.CheckOptions{}); err != nil {
			problems = append(problems, fmt.Errorf("squashfs part: %w", err))
		}
	}
	if err := l.checkEntries(ctx); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("check layer: %w", err)
	}
	return nil
}

// checkEntries proves that entries and inodes belong together.
func (l *Layer) checkEntries(ctx context.Context) error {
	inodes := l.sq.Superblock().Inodes
	if uint64(inodes) < l.head.numbers {
		return corrupt("%d files have content, and there are %d inodes", l.head.numbers, inodes)
	}
	named := make([]uint64, inodes/64+1)
	var entries int64
	for e, err := range l.records() {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !l.head.info.EStargz || !isLandmark(&e) {
			entries++
		}
		if e.Inode != 0 {
			if err := l.checkFile(&e, named); err != nil {
				return fmt.Errorf("entry %s: %w", quote(e.Name), err)
			}
		}
	}
	if entries != l.head.info.Entries {
		return corrupt("%d entries, and the header says %d", entries, l.head.info.Entries)
	}
	return l.checkUnnamed(ctx, named)
}

// checkFile proves that the file's inode is there and nobody else's.
func (l *Layer) checkFile(e *Entry, named []uint64) error {
	i, err := l.sq.InodeByNumber(e.Inode)
	if err != nil {
		return corrupt("inode %d: %w", e.Inode, err)
	}
	if i.Type != squashfs.TypeFile || i.Size != uint64(e.Size) {
		return corrupt("it has %d bytes, and inode %d is a %s of %d", e.Size, e.Inode, i.Type, i.Size)
	}
	word, bit := &named[e.Inode/64], uint64(1)<<(e.Inode%64)
	if *word&bit != 0 {
		return corrupt("inode %d is another entry's too", e.Inode)
	}
	*word |= bit
	return nil
}

func (l *Layer) checkUnnamed(ctx context.Context, named []uint64) error {
	for n := uint32(1); n <= l.sq.Superblock().Inodes; n++ {
		if named[n/64]>>(n%64)&1 != 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		i, err := l.sq.InodeByNumber(n)
		if err != nil {
			return corrupt("inode %d: %w", n, err)
		}
		if i.Type == squashfs.TypeFile && i.Size > 0 {
			return corrupt("inode %d has %d bytes, and no entry", n, i.Size)
		}
	}
	return nil
}
