package sim

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// svg writes one picture. Coordinates are pixels from the top left.
type svg struct {
	b             strings.Builder
	width, height float64
}

func newSVG(width, height float64, label string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(&s.b, `<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, px(width), px(height), html.EscapeString(label))
	return s
}

func (s *svg) end() string { return s.b.String() + "</svg>\n" }

// px is a coordinate, short.
func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&s.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, px(x1), px(y1), px(x2), px(y2), class)
}

// text writes at a point; anchor is start, middle or end.
func (s *svg) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&s.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, px(x), px(y), anchor, class, html.EscapeString(text))
}

func (s *svg) rect(x, y, w, h float64, class, title string) {
	fmt.Fprintf(&s.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"`, px(x), px(y), px(w), px(h), class)
	if title == "" {
		s.b.WriteString("/>")
		return
	}
	fmt.Fprintf(&s.b, `><title>%s</title></rect>`, html.EscapeString(title))
}

// path draws through points; an area is closed down to a height.
func (s *svg) path(points [][2]float64, class string, floor float64, area bool) {
	if len(points) == 0 {
		return
	}
	s.b.WriteString(`<path d="`)
	for i, p := range points {
		c := "L"
		if i == 0 {
			c = "M"
		}
		s.b.WriteString(c + px(p[0]) + " " + px(p[1]))
	}
	if area {
		fmt.Fprintf(&s.b, "L%s %sL%s %sZ", px(points[len(points)-1][0]), px(floor), px(points[0][0]), px(floor))
	}
	fmt.Fprintf(&s.b, `" class="%s"/>`, class)
}

// frame is the part of a picture that has the data, and what its edges mean.
type frame struct {
	s                        *svg
	left, top, right, bottom float64
	x0, x1, y0, y1           float64
	logX                     bool
}

func (f *frame) x(v float64) float64 {
	if f.logX {
		v, x0, x1 := math.Log(max(v, f.x0)), math.Log(f.x0), math.Log(f.x1)
		return f.left + (v-x0)/(x1-x0)*(f.right-f.left)
	}
	return f.left + (v-f.x0)/(f.x1-f.x0)*(f.right-f.left)
}

func (f *frame) y(v float64) float64 {
	return f.bottom - (v-f.y0)/(f.y1-f.y0)*(f.bottom-f.top)
}

// gridY draws lines across at values, with their texts on the left.
func (f *frame) gridY(values []float64, text func(float64) string) {
	for _, v := range values {
		f.s.line(f.left, f.y(v), f.right, f.y(v), "grid")
		f.s.text(f.left-6, f.y(v)+3.5, "end", "tick", text(v))
	}
}

// gridX draws lines down at values, with their texts below.
func (f *frame) gridX(values []float64, text func(float64) string) {
	for _, v := range values {
		f.s.line(f.x(v), f.top, f.x(v), f.bottom, "grid")
		f.s.text(f.x(v), f.bottom+15, "middle", "tick", text(v))
	}
}

// timeTicks are round moments from 0 to a length of time in seconds, about six, and how
// they are written.
func timeTicks(from, to float64) (values []float64, text func(float64) string) {
	unit, letter := 86400.0, "d"
	for _, u := range []struct {
		seconds float64
		letter  string
	}{{1, "s"}, {60, "min"}, {3600, "h"}} {
		if to-from < 6*u.seconds*map[string]float64{"s": 60, "min": 60, "h": 24}[u.letter] {
			unit, letter = u.seconds, u.letter
			break
		}
	}
	step := unit * niceStep((to-from)/unit/7)
	for v := math.Ceil(from/step) * step; v <= to+step/1e6; v += step {
		values = append(values, v)
	}
	return values, func(v float64) string {
		if days := math.Floor(v / 86400); unit < 86400 && days >= 1 { // far into a long run
			rest := round((v-days*86400)/unit, 3)
			if unit < 3600 {
				return fmt.Sprintf("%.0f d %02d:%02d", days, int(v/3600)%24, int(v/60)%60)
			}
			return fmt.Sprintf("%.0f d %s %s", days, strconv.FormatFloat(rest, 'f', -1, 64), letter)
		}
		return strconv.FormatFloat(round(v/unit, 3), 'f', -1, 64) + " " + letter
	}
}

// niceStep is the round number that is not below v: 1, 2, 5 times a power of ten.
func niceStep(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5, 10} {
		if v <= n*power*1.0000001 {
			return n * power
		}
	}
	return 10 * power
}
