#!/usr/bin/env python3
"""What a node of a graph costs, against what the machine itself takes for the same.

    python3 benches/nodes.py [--bin target/release/orchestrate] [--quick]

A fan of `bash: "true"` nodes (one, then many side by side, then one) against spawning as many
`bash -c true` with the same number in flight; both in turns within one run. Read the ratios and
the CPU times. Needs nothing but Python's standard library, and leaves nothing behind.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from statistics import median

from steps import MIB, cost

BASH = shutil.which("bash")


def fan(count):
    """A workflow of `count` nodes between a first and a last one."""
    lines = ["name: fan", "description: one, many, one", "nodes:",
             '  - { id: first, bash: "true" }']
    middle = [f"n{index}" for index in range(count)]
    lines += [f'  - {{ id: {node}, bash: "true", depends_on: [first] }}' for node in middle]
    lines += [f'  - {{ id: last, bash: "true", depends_on: [{", ".join(middle)}] }}']
    return "\n".join(lines) + "\n"


def spawn(count, jobs):
    """Spawns `bash -c true` so many times, with so many in flight. Wall and CPU seconds."""
    before, began, flying = os.times(), time.perf_counter(), 0
    for _ in range(count):
        if flying == jobs:
            os.wait()
            flying -= 1
        os.posix_spawn(BASH, ["bash", "-c", "true"], os.environ)
        flying += 1
    while flying:
        os.wait()
        flying -= 1
    wall = time.perf_counter() - began
    return wall, sum(now - then for now, then in list(zip(os.times(), before))[:4])


def row(what, value, reference, ratio, goal, met):
    word = {True: "yes", False: "no", None: ""}[met]
    print(f"| {what} | {value} | {reference} | {ratio} | {goal} | {word} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release/orchestrate")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    program = os.path.abspath(args.bin)
    if not os.path.exists(program):
        sys.exit(f"error: there is no `{program}`; `cargo build --release` makes it")
    jobs, rounds = 8, 1 if args.quick else 3
    print(f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")
    row("what", "value", "reference", "ratio", "goal", None)
    row("---", "---", "---", "---", "---", None)
    scratch = tempfile.mkdtemp(prefix="orchestrate-bench-")
    try:
        each = {}
        for count in (1_000,) if args.quick else (1_000, 10_000):
            file = os.path.join(scratch, f"fan{count}.yaml")
            with open(file, "w") as out:
                out.write(fan(count))
            checks = [cost([program, "validate", file], scratch) for _ in range(3)]
            checked = min(check.wall for check in checks)
            row(f"{count + 2:,} nodes: validate", f"{checked * 1000:.0f} ms", "", "",
                "< 1 s at 10,000", checked < 1)
            ours, theirs = [], []
            for _ in range(rounds if count == 1_000 else 1):
                theirs.append(spawn(count + 2, jobs))
                run = [program, "run", "-q", "--jobs", str(jobs), file]
                ours.append(cost(run, scratch))
            wall, cpu = median(o.wall for o in ours), median(o.cpu for o in ours)
            floor, floor_cpu = median(t[0] for t in theirs), median(t[1] for t in theirs)
            each[count] = cpu / (count + 2)
            row(f"1 → {count:,} → 1, {jobs} at once", f"{wall:.2f} s", f"spawning {floor:.2f} s",
                f"{wall / floor:.2f}×", "≤ 2×", wall <= 2 * floor)
            row("… CPU", f"{cpu:.2f} s", f"spawning {floor_cpu:.2f} s",
                f"{cpu / floor_cpu:.2f}×", "", None)
            peak = max(o.peak for o in ours)
            row("… peak memory", f"{peak / MIB:.1f} MiB", "", "", "< 100 MiB at 10,000",
                peak < 100 * MIB)
        if len(each) == 2:
            ratio = each[10_000] / each[1_000]
            row("a node's CPU, of 10,000", f"{each[10_000] * 1000:.2f} ms",
                f"of 1,000: {each[1_000] * 1000:.2f} ms", f"{ratio:.2f}×", "flat", ratio < 1.3)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
