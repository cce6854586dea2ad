#!/usr/bin/env python3
"""What a step costs, against what the machine itself takes for the same.

    python3 benches/steps.py [--bin target/release/orchestrate] [--quick]

Both sides of every comparison are measured in turns within one run, so that a busy machine
disturbs both alike; read the ratios and the CPU times, not the seconds. Needs nothing but
Python's standard library, and leaves nothing behind.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from statistics import median

MIB = 1 << 20
LINE = "a line of text such as agents print while they work"
TRUE = shutil.which("true")


class Cost:
    """What one command took: wall and CPU time of it and its children, memory, bytes written."""

    def __init__(self, wall, usage, written):
        self.wall = wall
        self.cpu = usage.ru_utime + usage.ru_stime
        self.peak = usage.ru_maxrss * 1024
        self.written = written


def start(argv, cwd, stderr):
    """posix_spawn, as a parent of any size should; its output goes nowhere."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
    ]
    here = os.getcwd()
    os.chdir(cwd)
    try:
        return os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
    finally:
        os.chdir(here)


def cost(argv, cwd, stderr="/dev/null"):
    began = time.perf_counter()
    pid = start(argv, cwd, stderr)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    wall = time.perf_counter() - began
    written = written_by(pid)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"error: {argv} ended with {os.waitstatus_to_exitcode(status)}")
    return Cost(wall, usage, written)


def written_by(pid):
    """All bytes a process has passed to `write`; its threads and reaped children included."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return dict(line.split(": ") for line in file.read().splitlines())["wchar"]
    except (OSError, KeyError):
        return None


def spawn_true(count):
    """The floor: posix_spawn of `true`, one at a time. Seconds of wall and CPU time."""
    before = os.times()
    began = time.perf_counter()
    for _ in range(count):
        os.waitpid(os.posix_spawn(TRUE, ["true"], os.environ), 0)
    wall = time.perf_counter() - began
    used = [now - then for now, then in zip(os.times(), before)]
    return wall, sum(used[:4])


def files_of_a_run(folder):
    """Seconds to make and sync what a run of one step leaves, and to spawn `true` once."""
    root = os.path.join(folder, "run")

    def write(name, size, sync=True):
        file = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, b"x" * size)
        if sync:
            os.fdatasync(file)
        os.close(file)

    def sync_dir(place):
        file = os.open(place, os.O_RDONLY)
        os.fsync(file)
        os.close(file)

    def replace(name, size):
        write("tmp", size)
        os.rename(os.path.join(root, "tmp"), os.path.join(root, name))
        sync_dir(root)

    began = time.perf_counter()
    os.mkdir(root)
    write("lock", 20, sync=False)
    for name in ("logs", "artifacts"):
        os.mkdir(os.path.join(root, name))
    replace("workflow.yaml", 60)
    write("journal.jsonl", 377)
    replace("state.json", 561)
    sync_dir(folder)
    os.symlink("run", os.path.join(folder, "new"))
    os.rename(os.path.join(folder, "new"), os.path.join(folder, "latest"))
    write("logs/orchestrator.log", 300, sync=False)
    os.waitpid(os.posix_spawn(TRUE, ["true"], os.environ), 0)
    write("journal.jsonl", 351)
    replace("state.json", 919)
    return time.perf_counter() - began


class Bench:
    def __init__(self, program, quick):
        self.program = program
        self.quick = quick
        self.scratch = tempfile.mkdtemp(prefix="orchestrate-bench-")
        self.rows = []
        self.one = 0.0

    def folder(self, workflow):
        folder = tempfile.mkdtemp(dir=self.scratch)
        self.put(folder, "w.yaml", workflow)
        return folder

    @staticmethod
    def put(folder, name, text):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)

    def run(self, folder):
        return cost([self.program, "run", "w.yaml"], folder, os.path.join(folder, "stderr"))

    @staticmethod
    def run_root(folder):
        return os.path.join(folder, ".orchestrate", "runs", "latest")

    def row(self, what, value, reference, ratio, goal, met):
        self.rows.append((what, value, reference, ratio, goal, "" if met is None else "yes" if met else "NO"))
        print(f"  {what}: {value} against {reference}: {ratio} ({goal})", file=sys.stderr, flush=True)

    # One step, start to end.

    def one_step(self):
        folder = self.folder(steps(1))
        ours, shell, files = [], [], []
        for _ in range(12 if self.quick else 40):
            ours.append(self.run(folder))
            shell.append(cost(["sh", "-c", "true"], folder))
            files.append(files_of_a_run(tempfile.mkdtemp(dir=self.scratch)))
        mine, theirs = median(c.wall for c in ours), median(c.wall for c in shell)
        self.one = min(c.wall for c in ours)
        self.one_cpu = min(c.cpu for c in ours)
        self.row("one step, start to end", ms(mine), f"`sh -c true` {ms(theirs)}",
                 times(mine / theirs), "< 20 ms and < 5×", mine < 0.020 and mine < 5 * theirs)
        theirs = median(files)
        self.row("… against its files and `true`", ms(mine), f"both alone {ms(theirs)}",
                 times(mine / theirs), "", None)
        cpu, shell_cpu = median(c.cpu for c in ours), median(c.cpu for c in shell)
        self.row("… its CPU", ms(cpu), f"`sh -c true` {ms(shell_cpu)}", times(cpu / shell_cpu), "", None)

    # 500 steps one after the other.

    def chain(self, count=500):
        folder = self.folder(steps(count))
        make = shutil.which("make")
        if make:
            targets = "".join(f"t{n}: t{n - 1}\n\t@true\n" for n in range(1, count))
            self.put(folder, "Makefile", f"all: t{count - 1}\nt0:\n\t@true\n{targets}")
        ours, floor, makes = [], [], []
        for _ in range(3 if self.quick else 9):
            floor.append(spawn_true(count))
            ours.append(self.run(folder))
            if make:
                makes.append(cost([make, "-s", "all"], folder))
        wall, cpu = [c.wall for c in ours], [c.cpu for c in ours]
        floor_wall, floor_cpu = [f[0] for f in floor], [f[1] for f in floor]
        name = f"{count} steps, one after the other"
        for kind, pick in (("median", median), ("least", min)):
            mine, theirs = pick(wall), pick(floor_wall)
            self.row(f"{name}: {kind}", f"{ms(mine / count)} each", f"posix_spawn {ms(theirs / count)}",
                     times(mine / theirs), "≤ 1.5×", mine <= 1.5 * theirs)
        mine, theirs = median(cpu), median(floor_cpu)
        self.row("… their CPU", f"{ms(mine / count)} each", f"posix_spawn {ms(theirs / count)}",
                 times(mine / theirs), "≤ 1.5×", mine <= 1.5 * theirs)
        if make:
            mine, theirs = median(wall), median(c.wall for c in makes)
            self.row("… against make", f"{ms(mine / count)} each", f"make {ms(theirs / count)}",
                     times(mine / theirs), "≤ 1.3×", mine <= 1.3 * theirs)
            mine, theirs = median(cpu), median(c.cpu for c in makes)
            self.row("… CPU against make", f"{ms(mine / count)} each", f"make {ms(theirs / count)}",
                     times(mine / theirs), "", None)

    # Loops of growing length.

    def loops(self):
        sizes = {250: 3, 1000: 2, 2000: 1} if self.quick else {250: 8, 1000: 4, 10_000: 2}
        folders = {size: self.folder(loop(size)) for size in sizes}
        found = {size: [] for size in sizes}
        # Sizes take turns, so that a slow minute is not one size's own.
        for turn in range(max(sizes.values())):
            for size, repeats in sizes.items():
                if turn < repeats:
                    before = spawn_true(250)
                    whole = self.run(folders[size])
                    after = spawn_true(250)
                    floor = (before[0] + after[0]) / 500
                    each = (whole.wall - self.one) / size
                    cpu = (whole.cpu - self.one_cpu) / size
                    found[size].append((each, cpu, each / floor, whole))
        least = min(sizes)
        base = [median(one[at] for one in found[least]) for at in range(3)]
        for size in sizes:
            each, cpu, ratio = [median(one[at] for one in found[size]) for at in range(3)]
            if size != least:
                self.row(f"for_each of {size:,}: an item's CPU", ms(cpu), f"of {least}: {ms(base[1])}",
                         times(cpu / base[1]), "≤ 1.3×", cpu <= 1.3 * base[1])
                self.row("… an item's time, in posix_spawns", f"{ratio:.2f} ({ms(each)})",
                         f"of {least}: {base[2]:.2f} ({ms(base[0])})",
                         times(ratio / base[2]), "≤ 1.3×", ratio <= 1.3 * base[2])
            self.snapshots(folders[size], size, found[size][-1][3])
        largest = max(sizes)
        peak = max(one[3].peak for one in found[largest])
        self.row(f"for_each of {largest:,}: peak memory", peak_of(peak), "", "", "< 64 MiB", peak < 64 * MIB)

    def snapshots(self, folder, size, whole):
        """Bytes of all snapshots: what was written in all, less every other file's size."""
        if whole.written is None:
            return
        root = self.run_root(folder)
        others = os.path.getsize(os.path.join(folder, "stderr"))
        for place, _, names in os.walk(root):
            others += sum(os.path.getsize(os.path.join(place, n)) for n in names if n != "state.json")
        # What the first step prints passes through a pipe, written by a child of ours.
        printed = len("\n".join(map(str, range(1, size + 1)))) + 1
        wrote = int(whole.written) - others - printed
        last = os.path.getsize(os.path.join(root, "state.json"))
        self.row(f"for_each of {size:,}: bytes of all snapshots", kib(wrote), f"the last one {kib(last)}",
                 times(wrote / last), "≤ 3×", wrote <= 3 * last)

    # Much output.

    def output(self):
        size = 256 * MIB if self.quick else 1024 * MIB
        produce = f"yes '{LINE}' | head -c {size}"
        folder = self.folder(
            f'version: "1.1"\nsteps:\n  - name: Much\n    command: ["sh", "-c", "{produce}"]\n')
        ours, cat = [], []
        for _ in range(2 if self.quick else 4):
            cat.append(cost(["sh", "-c", f"{{ {produce}; }} | cat > out"], folder))
            os.remove(os.path.join(folder, "out"))
            ours.append(self.run(folder))
            log = os.path.join(self.run_root(folder), "logs", "Much.stdout")
            if os.path.getsize(log) != size:
                sys.exit("error: the log is not whole")
            os.remove(log)
        mine, theirs = median(c.wall for c in ours), median(c.wall for c in cat)
        name = f"a step that prints {size // MIB} MiB"
        self.row(name, f"{mine:.2f} s", f"cat into a file {theirs:.2f} s", times(mine / theirs), "≤ 1.3×",
                 mine <= 1.3 * theirs)
        mine, theirs = median(c.cpu for c in ours), median(c.cpu for c in cat)
        self.row("… its CPU, the printing included", f"{mine:.2f} s", f"cat {theirs:.2f} s",
                 times(mine / theirs), "", None)
        peak = max(c.peak for c in ours)
        self.row("… peak memory", peak_of(peak), "", "", "< 64 MiB", peak < 64 * MIB)

    # Waiting for a step.

    def idle(self):
        folder = self.folder('version: "1.1"\nsteps:\n  - name: Sleep\n    command: ["sleep", "3"]\n')
        pid = start([self.program, "run", "w.yaml"], folder, "/dev/null")
        time.sleep(0.8)
        before = wakes(pid)
        time.sleep(2)
        after = wakes(pid)
        memory = resident(pid)
        os.wait4(pid, 0)
        rate, cpu = (after[0] - before[0]) / 2, (after[1] - before[1]) / 2
        self.row("while a step sleeps: wake-ups a second", f"{rate:.1f}", "", "", "≤ 0.5", rate <= 0.5)
        self.row("… its CPU", f"{cpu * 100:.1f} %", "", "", "0", cpu == 0)
        self.row("… memory", mib(memory), "", "", "< 16 MiB", memory < 16 * MIB)

    # Steps before and after a large state has come about.

    def large_state(self):
        size = 2000 if self.quick else 10_000
        numbers = ", ".join(map(str, range(500)))
        text = f"""version: "1.1"
steps:
  - name: Before
    for_each:
      items: [{numbers}]
      steps:
        - name: P
          command: ["true"]
  - name: List
    command: ["seq", "{size}"]
    output_capture: lines
  - name: Fill
    for_each:
      items_from: "steps.List.lines"
      steps:
        - name: F
          command: ["printf", "%01024d", "${{item}}"]
  - name: After
    for_each:
      items: [{numbers}]
      steps:
        - name: P
          command: ["true"]
"""
        folder = self.folder(text)
        whole = self.run(folder)
        took = {"Before": [], "After": []}
        with open(os.path.join(self.run_root(folder), "journal.jsonl")) as file:
            for line in file:
                entry = json.loads(line)
                name = entry.get("step", "").split(".")[0]
                if name in took and entry["event"] == "ended":
                    at = datetime.fromisoformat(entry["at"].replace("Z", "+00:00"))
                    took[name].append(at.timestamp())
        spans = {name: ends[-1] - ends[0] for name, ends in took.items()}
        mine, theirs = spans["After"] / 499, spans["Before"] / 499
        state = os.path.getsize(os.path.join(self.run_root(folder), "state.json"))
        self.row(f"a step with a state of {mib(state)}", ms(mine), f"at the start {ms(theirs)}",
                 times(mine / theirs), "≤ 1.3×", mine <= 1.3 * theirs)
        self.row("… peak memory", peak_of(whole.peak), f"the state {mib(state)}", times(whole.peak / state),
                 "< 64 MiB", whole.peak < 64 * MIB)

    def all(self):
        self.one_step()
        self.chain()
        self.loops()
        self.output()
        self.idle()
        self.large_state()

    def show(self):
        head = ("what", "value", "reference", "ratio", "goal", "met")
        wide = [max(len(row[at]) for row in [head, *self.rows]) for at in range(len(head))]
        for row in [head, ["-" * w for w in wide], *self.rows]:
            print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, wide)) + " |")


def steps(count):
    return 'version: "1.1"\nsteps:\n' + "".join(
        f'  - name: S{n}\n    command: ["true"]\n' for n in range(count))


def loop(count):
    return f"""version: "1.1"
steps:
  - name: List
    command: ["seq", "{count}"]
    output_capture: lines
  - name: Each
    for_each:
      items_from: "steps.List.lines"
      steps:
        - name: Do
          command: ["true"]
"""


def wakes(pid):
    """Voluntary context switches and CPU seconds of all threads so far."""
    switches = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status") as file:
            switches += sum(int(l.split()[1]) for l in file if l.startswith("voluntary_ctxt"))
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return switches, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(l.split()[1]) * 1024 for l in file if l.startswith("VmHWM"))


def peak_of(size):
    """A child is charged with what its parent took up before `exec`: less cannot be told."""
    own = resident(os.getpid())
    return mib(size) if size > own else f"at most {mib(own)}"


def ms(seconds):
    return f"{seconds * 1000:.2f} ms"


def mib(size):
    return f"{size / MIB:.1f} MiB"


def kib(size):
    return f"{size / 1024:,.0f} KiB"


def times(ratio):
    return f"{ratio:.2f}×"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release/orchestrate")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: under half a minute")
    parser.add_argument("--only", help="one part: one_step, chain, loops, output, idle or large_state")
    args = parser.parse_args()
    bench = Bench(os.path.abspath(args.bin), args.quick)
    began = time.perf_counter()
    load = os.getloadavg()[0]
    try:
        if args.only:
            bench.one = bench.one_cpu = 0.0
            getattr(bench, args.only)()
        else:
            bench.all()
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    took = time.perf_counter() - began
    print(f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, load {load:.1f} before, "
          f"{os.getloadavg()[0]:.1f} after; took {took:.0f} s")
    bench.show()


if __name__ == "__main__":
    main()
