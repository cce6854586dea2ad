"""Reads the statistics and leaves them, month by month, as an artifact of the run."""

import csv
import glob
import json
import os

figures = {}
for path in sorted(glob.glob("data/statistics/*.csv")):
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            figures.setdefault(row.pop("month"), {}).update(row)

with open(os.path.join(os.environ["ARTIFACTS_DIR"], "figures.json"), "w") as file:
    json.dump(figures, file)
print(len(figures), "months")
