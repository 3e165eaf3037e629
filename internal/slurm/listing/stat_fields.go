package listing

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// measured is an amount of a rank that is looked at.
type measured func(*job.RankUsage) int64

func usedCPU(u *job.RankUsage) int64     { return int64(u.User + u.System) }
func usedRSS(u *job.RankUsage) int64     { return u.RSS }
func usedVirtual(u *job.RankUsage) int64 { return u.Virtual }
func usedPages(u *job.RankUsage) int64   { return u.Pages }
func usedRead(u *job.RankUsage) int64    { return u.Read }
func usedWrite(u *job.RankUsage) int64   { return u.Write }

// most and fewest are the ranks with the most and the least of something; nil: none runs.
func (r *statRow) most(of measured) *job.RankUsage {
	if len(r.ranks) == 0 {
		return nil
	}
	u := slices.MaxFunc(r.ranks, func(a, b job.RankUsage) int { return cmp.Compare(of(&a), of(&b)) })
	return &u
}

func (r *statRow) fewest(of measured) *job.RankUsage {
	if len(r.ranks) == 0 {
		return nil
	}
	u := slices.MinFunc(r.ranks, func(a, b job.RankUsage) int { return cmp.Compare(of(&a), of(&b)) })
	return &u
}

func (r *statRow) sum(of measured) (all int64) {
	for i := range r.ranks {
		all += of(&r.ranks[i])
	}
	return all
}

func (r *statRow) mean(of measured) int64 { return r.sum(of) / int64(max(1, len(r.ranks))) }

// amount is how an amount is written.
type amount func(v *View, n int64) string

func wholeSeconds(_ *View, ms int64) string {
	return slurm.FormatTime(job.Duration(ms) / job.Second * job.Second)
}
func inKiB(v *View, bytes int64) string   { return v.rss(bytes) }
func inBytes(v *View, bytes int64) string { return v.size(bytes, 0) }
func counted(_ *View, n int64) string     { return strconv.FormatInt(n, 10) }

// maxOf and so on are the texts of columns.
func maxOf(of measured, as amount) func(*View, *statRow) string {
	return ofRank((*statRow).most, of, func(v *View, u *job.RankUsage) string { return as(v, of(u)) })
}

func maxNode(of measured) func(*View, *statRow) string {
	return ofRank((*statRow).most, of, func(_ *View, u *job.RankUsage) string { return u.Node })
}

func maxTask(of measured) func(*View, *statRow) string {
	return ofRank((*statRow).most, of, func(_ *View, u *job.RankUsage) string { return strconv.Itoa(u.Rank) })
}

// ofRank is a text about the rank that a column is about; empty where none runs.
func ofRank(which func(*statRow, measured) *job.RankUsage, of measured, text func(*View, *job.RankUsage) string) func(*View, *statRow) string {
	return func(v *View, r *statRow) string {
		u := which(r, of)
		if u == nil {
			return ""
		}
		return text(v, u)
	}
}

func meanOf(of measured, as amount) func(*View, *statRow) string {
	return func(v *View, r *statRow) string {
		if len(r.ranks) == 0 {
			return ""
		}
		return as(v, r.mean(of))
	}
}

// tresIn are the amounts that TRESUsageIn has, in its order; TRESUsageOut is what was written.
var tresIn = []struct {
	name string
	of   measured
	as   amount
}{
	{"cpu", usedCPU, wholeSeconds},
	{"fs/disk", usedRead, counted},
	{"mem", usedRSS, inKiB},
	{"pages", usedPages, counted},
	{"vmem", usedVirtual, inKiB},
}

// inOf writes something of each of these.
func inOf(text func(v *View, r *statRow, of measured, as amount) string) func(*View, *statRow) string {
	return func(v *View, r *statRow) string {
		if len(r.ranks) == 0 {
			return ""
		}
		words := make([]string, len(tresIn))
		for i, t := range tresIn {
			words[i] = t.name + "=" + text(v, r, t.of, t.as)
		}
		return strings.Join(words, ",")
	}
}

func outOf(text func(v *View, r *statRow) string) func(*View, *statRow) string {
	return func(v *View, r *statRow) string {
		if len(r.ranks) == 0 {
			return ""
		}
		return "fs/disk=" + text(v, r)
	}
}

func nodeOf(which func(*statRow, measured) *job.RankUsage) func(*View, *statRow, measured, amount) string {
	return func(_ *View, r *statRow, of measured, _ amount) string { return which(r, of).Node }
}

func taskOf(which func(*statRow, measured) *job.RankUsage) func(*View, *statRow, measured, amount) string {
	return func(_ *View, r *statRow, of measured, _ amount) string { return strconv.Itoa(which(r, of).Rank) }
}

func unknown(*View, *statRow) string { return "Unknown" }
func none0(*View, *statRow) string   { return "0" }

// statFields are sstat's, with Slurm 22.05's widths, in the order of its --helpformat.
// Frequencies and energy are not measured.
var statFields = []tableField[statRow]{
	{"AveCPU", 10, meanOf(usedCPU, wholeSeconds)},
	{"AveCPUFreq", 10, none0},
	{"AveDiskRead", 12, meanOf(usedRead, inBytes)},
	{"AveDiskWrite", 12, meanOf(usedWrite, inBytes)},
	{"AvePages", 10, meanOf(usedPages, counted)},
	{"AveRSS", 10, meanOf(usedRSS, inKiB)},
	{"AveVMSize", 10, meanOf(usedVirtual, inKiB)},
	{"ConsumedEnergy", 14, none0},
	{"ConsumedEnergyRaw", 17, none0},
	{"JobID", -12, func(v *View, r *statRow) string { return v.ID(r.step) }},
	{"MaxDiskRead", 12, maxOf(usedRead, inBytes)},
	{"MaxDiskReadNode", 15, maxNode(usedRead)},
	{"MaxDiskReadTask", 15, maxTask(usedRead)},
	{"MaxDiskWrite", 12, maxOf(usedWrite, inBytes)},
	{"MaxDiskWriteNode", 16, maxNode(usedWrite)},
	{"MaxDiskWriteTask", 16, maxTask(usedWrite)},
	{"MaxPages", 8, maxOf(usedPages, counted)},
	{"MaxPagesNode", 12, maxNode(usedPages)},
	{"MaxPagesTask", 14, maxTask(usedPages)},
	{"MaxRSS", 10, maxOf(usedRSS, inKiB)},
	{"MaxRSSNode", 10, maxNode(usedRSS)},
	{"MaxRSSTask", 10, maxTask(usedRSS)},
	{"MaxVMSize", 10, maxOf(usedVirtual, inKiB)},
	{"MaxVMSizeNode", 14, maxNode(usedVirtual)},
	{"MaxVMSizeTask", 14, maxTask(usedVirtual)},
	{"MinCPU", 10, ofRank((*statRow).fewest, usedCPU, func(v *View, u *job.RankUsage) string { return wholeSeconds(v, usedCPU(u)) })},
	{"MinCPUNode", 10, ofRank((*statRow).fewest, usedCPU, func(_ *View, u *job.RankUsage) string { return u.Node })},
	{"MinCPUTask", 10, ofRank((*statRow).fewest, usedCPU, func(_ *View, u *job.RankUsage) string { return strconv.Itoa(u.Rank) })},
	{"Nodelist", 20, func(_ *View, r *statRow) string { return r.node }},
	{"NTasks", 8, func(_ *View, r *statRow) string { return strconv.Itoa(r.step.Tasks) }},
	{"Pids", 20, statPids},
	{"ReqCPUFreq", 13, unknown},
	{"ReqCPUFreqMin", 13, unknown},
	{"ReqCPUFreqMax", 13, unknown},
	{"ReqCPUFreqGov", 13, unknown},
	{"TRESUsageInAve", 14, inOf(func(v *View, r *statRow, of measured, as amount) string { return as(v, r.mean(of)) })},
	{"TRESUsageInMax", 14, inOf(func(v *View, r *statRow, of measured, as amount) string { return as(v, of(r.most(of))) })},
	{"TRESUsageInMaxNode", 18, inOf(nodeOf((*statRow).most))},
	{"TRESUsageInMaxTask", 18, inOf(taskOf((*statRow).most))},
	{"TRESUsageInMin", 14, inOf(func(v *View, r *statRow, of measured, as amount) string { return as(v, of(r.fewest(of))) })},
	{"TRESUsageInMinNode", 18, inOf(nodeOf((*statRow).fewest))},
	{"TRESUsageInMinTask", 18, inOf(taskOf((*statRow).fewest))},
	{"TRESUsageInTot", 14, inOf(func(v *View, r *statRow, of measured, as amount) string { return as(v, r.sum(of)) })},
	{"TRESUsageOutAve", 15, outOf(func(v *View, r *statRow) string { return counted(v, r.mean(usedWrite)) })},
	{"TRESUsageOutMax", 15, outOf(func(v *View, r *statRow) string { return counted(v, r.most(usedWrite).Write) })},
	{"TRESUsageOutMaxNode", 19, outOf(func(_ *View, r *statRow) string { return r.most(usedWrite).Node })},
	{"TRESUsageOutMaxTask", 19, outOf(func(_ *View, r *statRow) string { return strconv.Itoa(r.most(usedWrite).Rank) })},
	{"TRESUsageOutMin", 15, outOf(func(v *View, r *statRow) string { return counted(v, r.fewest(usedWrite).Write) })},
	{"TRESUsageOutMinNode", 19, outOf(func(_ *View, r *statRow) string { return r.fewest(usedWrite).Node })},
	{"TRESUsageOutMinTask", 19, outOf(func(_ *View, r *statRow) string { return strconv.Itoa(r.fewest(usedWrite).Rank) })},
	{"TRESUsageOutTot", 15, outOf(func(v *View, r *statRow) string { return counted(v, r.sum(usedWrite)) })},
}

// statPids are the processes of the ranks.
func statPids(_ *View, r *statRow) string {
	var words []string
	for i := range r.ranks {
		for _, pid := range r.ranks[i].PIDs {
			words = append(words, strconv.Itoa(pid))
		}
	}
	return strings.Join(words, ",")
}
