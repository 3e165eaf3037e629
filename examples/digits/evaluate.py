"""Compares what all shares of the inference said with what is so."""

import csv
import glob
import os
import sys

from digits import load

said = {}
for path in glob.glob(os.path.join(sys.argv[1], "predictions-*.csv")):
    with open(path, newline="") as f:
        said.update((int(row), int(digit)) for row, digit in csv.reader(f))
_, (_, digits) = load("digits.csv.gz")
missing = [row for row in range(len(digits)) if row not in said]
if missing:
    sys.exit(f"{len(missing)} rows are in no share, the first is {missing[0]}")
right = sum(said[row] == digit for row, digit in enumerate(digits.tolist()))
print(f"{right} of {len(digits)} held-out rows are right: {100 * right / len(digits):.1f} %")
