package sim

import (
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
)

// HTML writes the report as one page that needs nothing else: figures, utilisation and
// queue over time, the distribution of waits, and a Gantt chart of the first result.
func (r *Report) HTML(w io.Writer) error {
	var b strings.Builder
	title := fmt.Sprintf("%s on %d nodes", r.Trace.Name, r.Cluster.Nodes)
	if r.Cluster.Nodes == 1 {
		title = r.Trace.Name + " on one node"
	}
	fmt.Fprintf(&b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"+
		"<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n<main>\n", html.EscapeString(title), pageStyle)
	fmt.Fprintf(&b, "<h1>%s</h1>\n<p class=\"sub\">%s</p>\n", html.EscapeString(title), html.EscapeString(r.summary()))
	if len(r.Results) == 0 {
		b.WriteString("<p>Nothing was run.</p>\n</main>\n</body>\n</html>\n")
		_, err := io.WriteString(w, b.String())
		return err
	}
	ours := r.Results[0]
	r.cards(&b, ours)
	unit := "CPUs"
	if ours.onGPUs {
		unit = "GPUs"
	}
	r.section(&b, unit+" in use", "The part of all "+unit+" that jobs had, by the time since the first submission.", true,
		r.overTime(unit+" in use over time", 220, true, func(x *Result, s step) float64 { return float64(s.value(x.onGPUs)) / float64(max(x.capacity, 1)) }))
	r.section(&b, "Jobs waiting", "How many jobs were submitted and had not started.", true, r.overTime("jobs waiting over time", 160, false, func(_ *Result, s step) float64 { return float64(s.wait) }))
	r.section(&b, "Waits", "The part of the jobs that had started after waiting so long.", true, r.waits())
	picture, note := ours.gantt()
	r.section(&b, "Jobs by node: "+ours.Policy, note, false, ganttLegend(unit)+picture)
	r.table(&b)
	b.WriteString("</main>\n</body>\n</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) summary() string {
	var text strings.Builder
	text.WriteString(fmt.Sprintf("%d jobs over %s (%s), load %.2f, on %s: %d CPUs, %d GPUs.", r.Trace.Jobs, span(r.Trace.Days*86400), r.Trace.Format, r.Trace.Load,
		r.Cluster.Name, r.Cluster.CPUs, r.Cluster.GPUs))
	for _, l := range r.Trace.LeftOut {
		text.WriteString(fmt.Sprintf(" Left out: %d jobs (%s).", l.Jobs, l.Why))
	}
	if r.Trace.Broken > 0 {
		text.WriteString(" Skipped: " + brokenLines(r.Trace.Broken) + ".")
	}
	return text.String()
}

// cards are the figures to look at first.
func (r *Report) cards(b *strings.Builder, x *Result) {
	promise := "no job had to wait"
	if x.Promise.Jobs > 0 {
		promise = fmt.Sprintf("%d of %d jobs started later than promised", x.Promise.Late, x.Promise.Jobs)
	}
	delivered := amount(x.GPUHours) + " GPU hours delivered"
	if !x.onGPUs {
		delivered = amount(x.CPUHours) + " CPU hours delivered"
	}
	b.WriteString("<div class=\"cards\">\n")
	for _, card := range [][3]string{
		{"mean wait", span(x.Wait.Mean), "p95 " + span(x.Wait.P95)},
		{"utilisation", fmt.Sprintf("%.1f %%", 100*x.Utilisation), delivered},
		{"promises broken, jobs", strconv.Itoa(x.Promise.Broken), promise},
		{"decision, p99", micros(x.Decide.P99), fmt.Sprintf("%.0f decisions a second", x.DecisionsSec)},
	} {
		fmt.Fprintf(b, "<div class=\"card\"><div class=\"name\">%s</div><div class=\"value\">%s</div><div class=\"more\">%s</div></div>\n",
			html.EscapeString(card[0]), html.EscapeString(card[1]), html.EscapeString(card[2]))
	}
	b.WriteString("</div>\n")
}

// micros is a latency for people.
func micros(us float64) string {
	switch {
	case us < 1e3:
		return fmt.Sprintf("%.0f µs", us)
	case us < 1e6:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}

func (r *Report) section(b *strings.Builder, title, note string, legend bool, picture string) {
	fmt.Fprintf(b, "<section>\n<h2>%s</h2>\n", html.EscapeString(title))
	if note != "" {
		fmt.Fprintf(b, "<p>%s</p>\n", html.EscapeString(note))
	}
	if legend && len(r.Results) > 1 {
		b.WriteString("<p class=\"legend\">")
		for i, x := range r.Results {
			fmt.Fprintf(b, "<span><i class=\"k%d\"></i>%s</span>", i%4, html.EscapeString(x.Policy))
		}
		b.WriteString("</p>\n")
	}
	b.WriteString(picture + "</section>\n")
}

func ganttLegend(unit string) string {
	var b strings.Builder
	b.WriteString("<p class=\"legend\"><span>" + unit + " of a job:</span>")
	for i, name := range []string{"1", "2-3", "4-7", "8", "9-31", "32-127", "128 and more"} {
		fmt.Fprintf(&b, "<span><i class=\"g%d\"></i>%s</span>", i, name)
	}
	b.WriteString("</p>\n")
	return b.String()
}

// table is all figures, side by side.
func (r *Report) table(b *strings.Builder) {
	b.WriteString("<section>\n<h2>All figures</h2>\n<div class=\"wide\"><table>\n")
	for i, row := range r.rows() {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		b.WriteString("<tr>")
		for k, text := range row {
			if k == 0 {
				fmt.Fprintf(b, "<th>%s</th>", html.EscapeString(text))
				continue
			}
			fmt.Fprintf(b, "<%s>%s</%s>", cell, html.EscapeString(text), cell)
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</table></div>\n")
	for _, x := range r.Results {
		if x.Model {
			b.WriteString("<p>A \"model of\" a policy is Gangway's own imitation of it, run on the same jobs.</p>\n")
			break
		}
	}
	b.WriteString("</section>\n")
}

// pageStyle has the colours for light and dark screens.
const pageStyle = `
:root{--bg:#fff;--fg:#1b2430;--dim:#667085;--rule:#e4e7ec;--card:#f7f8fa;--c0:#2563eb;--c1:#ea7317;--c2:#6b7280;--c3:#059669;
--s0:#bfdbfe;--s1:#93c5fd;--s2:#60a5fa;--s3:#2563eb;--s4:#1e3a8a;--s5:#9333ea;--s6:#db2777}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6e9ee;--dim:#98a2b3;--rule:#2a313b;--card:#1b2129;--c0:#6ea8fe;--c1:#fb9a4b;--c2:#a3aab5;--c3:#34d399;
--s0:#27436a;--s1:#2c5a96;--s2:#3876cc;--s3:#6ea8fe;--s4:#c3dcff;--s5:#c084fc;--s6:#f472b6}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:17px;margin:34px 0 2px}
p{margin:2px 0 8px;color:var(--dim)}
.sub{font-size:14px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:20px 0 4px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px 16px}
.card .name,.card .more{color:var(--dim);font-size:13px}
.card .value{font-size:25px;font-weight:600;letter-spacing:-.02em}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--dim);stroke-width:1}
.tick{fill:var(--dim);font-size:11px}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.area{stroke:none;opacity:.16}.area.c0{fill:var(--c0)}
.k0{background:var(--c0)}.k1{background:var(--c1)}.k2{background:var(--c2)}.k3{background:var(--c3)}
.s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}.s5{fill:var(--s5)}.s6{fill:var(--s6)}
.g0{background:var(--s0)}.g1{background:var(--s1)}.g2{background:var(--s2)}.g3{background:var(--s3)}.g4{background:var(--s4)}.g5{background:var(--s5)}.g6{background:var(--s6)}
rect{stroke:var(--bg);stroke-width:.3}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;margin-top:6px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 22px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr th:first-child{font-weight:400;color:var(--dim);white-space:nowrap}
`
