package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
)

// The shape of the data: what was measured of each flower, with a constant, and the species.
const (
	features = 4 + 1
	classes  = 3
)

// flower is one row: standardised measures, and the species.
type flower struct {
	x       [features]float64
	species int
}

// dataset is the rows; each fifth is held out of the training.
type dataset struct{ train, heldOut []flower }

// readData reads the rows, and standardises them by those of the training.
func readData(path string) (*dataset, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var d dataset
	for i, row := range rows[1:] { // after the head
		one := flower{x: [features]float64{features - 1: 1}}
		for j := range features - 1 {
			if one.x[j], err = strconv.ParseFloat(row[j], 64); err != nil {
				return nil, fmt.Errorf("read %s: row %d: %w", path, i+1, err)
			}
		}
		if one.species, err = strconv.Atoi(row[features-1]); err != nil || one.species < 0 || one.species >= classes {
			return nil, fmt.Errorf("read %s: row %d: %q is no species", path, i+1, row[features-1])
		}
		if i%5 == 0 {
			d.heldOut = append(d.heldOut, one)
		} else {
			d.train = append(d.train, one)
		}
	}
	d.standardise()
	return &d, nil
}

func (d *dataset) standardise() {
	for j := range features - 1 {
		var sum, squares float64
		for _, f := range d.train {
			sum += f.x[j]
			squares += f.x[j] * f.x[j]
		}
		n := float64(len(d.train))
		mean := sum / n
		deviation := math.Sqrt(squares/n - mean*mean)
		for _, rows := range [][]flower{d.train, d.heldOut} {
			for i := range rows {
				rows[i].x[j] = (rows[i].x[j] - mean) / deviation
			}
		}
	}
}

// weights are the model: a row a species.
type weights [classes * features]float64

// scores are the probabilities of the species of a flower.
func (w *weights) scores(x *[features]float64) (p [classes]float64) {
	sum := 0.0
	for c := range classes {
		for j := range features {
			p[c] += w[c*features+j] * x[j]
		}
		p[c] = math.Exp(p[c])
		sum += p[c]
	}
	for c := range p {
		p[c] /= sum
	}
	return p
}

// species is the most probable one.
func (w *weights) species(x *[features]float64) int {
	p := w.scores(x)
	best := 0
	for c := range p {
		if p[c] > p[best] {
			best = c
		}
	}
	return best
}

// totals are what ranks add up in an epoch: the gradient, the loss, and of how many rows.
type totals [classes*features + 2]float64

// gradient is that of some rows.
func (w *weights) gradient(rows []flower) (g totals) {
	for i := range rows {
		f := &rows[i]
		p := w.scores(&f.x)
		g[classes*features] -= math.Log(p[f.species])
		p[f.species]--
		for c := range classes {
			for j := range features {
				g[c*features+j] += p[c] * f.x[j]
			}
		}
	}
	g[classes*features+1] = float64(len(rows))
	return g
}

// step goes down the gradient of all rows, and returns their mean loss.
func (w *weights) step(g *totals, rate float64) float64 {
	n := g[classes*features+1]
	for i := range w {
		w[i] -= rate * g[i] / n
	}
	return g[classes*features] / n
}

// accuracy is the share of rows whose species is found.
func (w *weights) accuracy(rows []flower) float64 {
	right := 0
	for i := range rows {
		if w.species(&rows[i].x) == rows[i].species {
			right++
		}
	}
	return float64(right) / float64(len(rows))
}
