#!/usr/bin/env python3
"""What a start of the program costs, and what it takes on disk.

    python3 benches/start.py [--bin target/release] [--rounds 200]

Every command is run in turns with `sh -c true`, so that a busy machine disturbs all alike; read
the ratios, not the seconds. Needs nothing but Python's standard library, and leaves nothing behind.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median

PROGRAMS = ["orchestrate", "coordinator", "worker", "architect", "engineer", "qa"]
NOBODY = subprocess.DEVNULL


def once(argv, cwd):
    """Wall time and page faults of one start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    code = subprocess.call(argv, cwd=cwd, stdin=NOBODY, stdout=NOBODY, stderr=NOBODY)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code != 0:
        sys.exit(f"{argv} ended with {code}")
    return wall, after.ru_minflt - before.ru_minflt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release", help="where the programs are")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    programs = os.path.abspath(options.bin)

    def program(name):
        return os.path.join(programs, name)

    print(f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}")
    total = 0
    for name in PROGRAMS:
        if os.path.exists(program(name)):
            size = os.path.getsize(program(name))
            total += size
            print(f"  {name:<12} {size / 1e6:7.2f} MB")
    print(f"  {'together':<12} {total / 1e6:7.2f} MB")

    commands = [
        ("sh -c true", ["sh", "-c", "true"]),
        ("orchestrate --version", [program("orchestrate"), "--version"]),
        ("orchestrate status, nothing there", [program("orchestrate"), "status"]),
        ("orchestrate worker --help", [program("orchestrate"), "worker", "--help"]),
        ("worker --help", [program("worker"), "--help"]),
    ]
    with tempfile.TemporaryDirectory() as empty:
        for _, argv in commands:
            once(argv, empty)
        measured = {name: [] for name, _ in commands}
        for _ in range(options.rounds):
            for name, argv in commands:
                measured[name].append(once(argv, empty))
    base = median(wall for wall, _ in measured["sh -c true"])
    print(f"{'command':<36} {'median':>9} {'of sh':>7} {'least':>9} {'faults':>7}")
    for name, _ in commands:
        walls = [wall for wall, _ in measured[name]]
        faults = median(count for _, count in measured[name])
        middle = median(walls)
        print(
            f"{name:<36} {middle * 1e3:6.2f} ms {middle / base:6.2f}x"
            f" {min(walls) * 1e3:6.2f} ms {faults:7.0f}"
        )


if __name__ == "__main__":
    main()
