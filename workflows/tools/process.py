"""Adds up a column. With no file it fails in the way that the debugging example looks into."""

import csv
import sys


def main() -> None:
    path = sys.argv[1]
    print(f"reading {path}", file=sys.stderr)
    with open(path, newline="") as file:
        total = sum(int(row["calls"]) for row in csv.DictReader(file))
    print(total)


main()
