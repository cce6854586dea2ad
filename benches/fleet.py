#!/usr/bin/env python3
"""What a task through the queue costs, against what the machine itself takes for its parts.

    python3 benches/fleet.py [--bin target/release/orchestrate] [--quick] [--only NAME]

Throughput is compared with spawning `true` two at a time, in turns within one run; read the
ratios and the CPU per task, not the seconds. Needs nothing but Python's standard library. Its
scratch directory is moved aside until the end, because removing many files slows creating others
down for minutes on some file systems.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from statistics import median

TRUE = shutil.which("true")
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def task_id(number):
    """26 characters that sort by number."""
    text = ""
    for _ in range(26):
        text = ALPHABET[number % 32] + text
        number //= 32
    return text


def sealed(document):
    head = json.dumps(document, separators=(",", ":"))[:-1]
    return f'{head},"seal":"{hashlib.sha256(head.encode()).hexdigest()}"}}\n'


def step_task(number, argv):
    """A task as a coordinator puts it out: a command of a step."""
    ident = task_id(number)
    return f"5-{ident}.a01.task", sealed({
        "schema": "task/v1", "kind": "step", "id": ident, "agent": "bench",
        "created_at": "2025-01-15T14:30:22.000Z", "step": "S", "step_attempt": 1,
        "run_id": "20250115T143022Z-abc123", "run_root": ".orchestrate/runs/bench",
        "ticket": "t", "work": {"step": "S", "attempt": 1, "argv": argv},
        "batch": "20250115T143022Z-abc123", "crash_limit": 3,
    })


def spawn_two_at_a_time(count):
    """S: posix_spawn of `true`, two in flight. Seconds of wall and CPU time."""
    before, began, flying = os.times(), time.perf_counter(), 0
    for _ in range(count):
        if flying == 2:
            os.wait()
            flying -= 1
        os.posix_spawn(TRUE, ["true"], os.environ)
        flying += 1
    while flying:
        os.wait()
        flying -= 1
    wall = time.perf_counter() - began
    return wall, sum(now - then for now, then in list(zip(os.times(), before))[:4])


class Bench:
    def __init__(self, program, quick):
        self.program, self.quick = program, quick
        self.scratch = tempfile.mkdtemp(prefix="orchestrate-bench-")
        self.rows = []

    def say(self, what, value, reference, ratio, goal, met):
        self.rows.append((what, value, reference, ratio, goal, met))
        print(f"  {what}: {value} against {reference}: {ratio} ({goal})", file=sys.stderr)

    def folder(self, settings="durability: process\n"):
        folder = tempfile.mkdtemp(dir=self.scratch)
        os.makedirs(os.path.join(folder, ".orchestrate/runs/bench/logs"))
        self.put(folder, ".orchestrate/config.yaml", settings)
        # A queue has a name before it has tasks.
        self.put(folder, ".orchestrate/fleet.json", '{"schema":"fleet/v1","volume":"bench0000000"}\n')
        return folder

    @staticmethod
    def put(folder, name, text):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def start(self, folder, *args):
        return subprocess.Popen([self.program, "--quiet", *args], cwd=folder,
                                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL)

    def fill(self, folder, count, argv=None, first=1 << 60):
        inbox = os.path.join(folder, "inbox/bench")
        os.makedirs(inbox, exist_ok=True)
        for number in range(first, first + count):
            name, text = step_task(number, argv or [TRUE])
            with open(os.path.join(inbox, name), "w") as file:
                file.write(text)
        return inbox

    def drain(self, folder, concurrency=2):
        """Seconds of wall and CPU time for a worker to empty the inbox, its children included."""
        before = os.times()
        began = time.perf_counter()
        worker = self.start(folder, "worker", "bench", "--drain", "--concurrency",
                            str(concurrency))
        if worker.wait() != 0:
            sys.exit("error: the worker failed")
        wall = time.perf_counter() - began
        now = os.times()
        return wall, (now.children_user - before.children_user
                      + now.children_system - before.children_system)

    def throughput(self):
        count = 500 if self.quick else 2000
        for durability, goal, share in (("process", "≥ 60 %", 0.6), ("power", "≥ 30 %", 0.3)):
            rates, cpus, floors, floor_cpus = [], [], [], []
            for _ in range(2 if self.quick else 3):
                wall, cpu = spawn_two_at_a_time(count)
                floors.append(count / wall)
                floor_cpus.append(cpu / count)
                folder = self.folder(f"durability: {durability}\n")
                self.fill(folder, count)
                wall, cpu = self.drain(folder)
                rates.append(count / wall)
                cpus.append(cpu / count)
                done = len(os.listdir(os.path.join(folder, "processed/20250115T143022Z-abc123")))
                if done != 2 * count:
                    sys.exit(f"error: {done} files of {2 * count}")
            rate, floor = median(rates), median(floors)
            self.say(f"{count} tasks, two at a time, durability {durability}", f"{rate:.0f}/s",
                     f"spawning `true` {floor:.0f}/s", f"{rate / floor:.2f}", goal,
                     rate / floor >= share)
            ratio = median(cpus) / median(floor_cpus)
            self.say("… CPU per task", f"{median(cpus) * 1e3:.2f} ms",
                     f"spawning {median(floor_cpus) * 1e3:.2f} ms", f"{ratio:.2f}×", "", True)

    def enqueue(self):
        """Many tasks put out by one call, as acknowledged."""
        count = 500 if self.quick else 2000
        for durability in ("process", "power"):
            folder = self.folder(f"durability: {durability}\n")
            lines = "".join(f"do thing {n}\n" for n in range(count))
            began = time.perf_counter()
            subprocess.run([self.program, "--quiet", "enqueue", "bench", "-", "--each-line"],
                           cwd=folder, input=lines, text=True, check=True,
                           stdout=subprocess.DEVNULL)
            wall = time.perf_counter() - began
            self.say(f"{count} tasks enqueued at once, durability {durability}",
                     f"{count / wall:.0f}/s", "", "", "", True)

    def latency(self):
        """From the rename into the inbox to the first instruction of the task's own program."""
        count = 100 if self.quick else 400
        for durability in ("process", "power"):
            folder = self.folder(f"durability: {durability}\n")
            inbox = os.path.join(folder, "inbox/bench")
            os.makedirs(inbox)
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            reader = os.open(fifo, os.O_RDWR)
            worker = self.start(folder, "worker", "bench")
            code = ("import os,time; f=os.open('fifo',os.O_WRONLY); "
                    "os.write(f,b'x')")
            stamp = build_stamp(self.scratch)
            waits = []
            argv = [stamp, "fifo"] if stamp else [sys.executable, "-c", code]
            time.sleep(0.5)
            for number in range(count):
                name, text = step_task((1 << 60) + number, argv)
                temporary = os.path.join(folder, "t")
                with open(temporary, "w") as file:
                    file.write(text)
                began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                os.rename(temporary, os.path.join(inbox, name))
                arrived = int.from_bytes(os.read(reader, 8), "little")
                waits.append((arrived - began) / 1e6)
                # The worker is idle again before the next one comes.
                time.sleep(0.005)
            worker.send_signal(signal.SIGTERM)
            worker.wait()
            waits.sort()
            p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
            bare = bare_latency(folder, argv, reader, count)
            self.say(f"latency, idle worker, durability {durability}, p50", f"{p50:.2f} ms",
                     f"spawning alone {bare[0]:.2f} ms", f"{p50 / bare[0]:.2f}×",
                     "< 1.5 ms", p50 < 1.5)
            self.say("… p99", f"{p99:.2f} ms", f"alone {bare[1]:.2f} ms",
                     f"{p99 / bare[1]:.2f}×", "< 10 ms", p99 < 10)

    def depth(self):
        """The cost of a task by how many are queued, from the first that ended on.

        Looking at a deep inbox costs its share of the time at most, so enough are executed for
        that share to show.
        """
        depths = [1000, 10_000, 100_000] if self.quick else [1000, 10_000, 100_000, 1_000_000]
        costs = {}
        for depth in depths:
            folder = self.folder()
            self.fill(folder, depth)
            worker = self.start(folder, "worker", "bench", "--concurrency", "2")
            ended = os.path.join(folder, "processed/20250115T143022Z-abc123")
            started = time.perf_counter()
            while not os.path.isdir(ended):
                time.sleep(0.001)
            first = time.perf_counter() - started
            span = 0.5 if depth == depths[0] else 4 if self.quick else 8
            done, used, began = len(os.listdir(ended)), self.used(worker.pid), time.perf_counter()
            time.sleep(span)
            # One look at the end: looking costs time too.
            done, used = len(os.listdir(ended)) - done, self.used(worker.pid) - used
            wall = (time.perf_counter() - began) / (done / 2)
            cpu = used / (done / 2)
            worker.send_signal(signal.SIGTERM)
            worker.wait()
            costs[depth] = (wall, cpu)
            base = costs[depths[0]]
            self.say(f"a task with {depth:,} queued",
                     f"{wall * 1e3:.2f} ms, CPU {cpu * 1e3:.2f} ms; the first after {first:.2f} s",
                     f"with {depths[0]:,}: {base[0] * 1e3:.2f} ms, CPU {base[1] * 1e3:.2f} ms",
                     f"{wall / base[0]:.2f}×, CPU {cpu / base[1]:.2f}×", "≤ 1.5×",
                     wall / base[0] <= 1.5)

    @staticmethod
    def used(pid):
        """Seconds of CPU that a process and the children it has waited for have used."""
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def chain(self):
        """Dependent steps through coordinator and worker, as one loop of a workflow."""
        count = 200 if self.quick else 1000
        for durability in ("process", "power"):
            folder = self.folder(f"durability: {durability}\n")
            items = json.dumps(list(range(count)))
            self.put(folder, "w.yaml", f"""version: "1.1"
steps:
  - name: First
    agent: bench
    command: ["{TRUE}"]
  - name: Each
    for_each:
      items: {items}
      steps:
        - name: S
          agent: bench
          command: ["{TRUE}"]
  - name: Last
    agent: bench
    command: ["{TRUE}"]
""")
            worker = self.start(folder, "worker", "bench")
            began = time.perf_counter()
            run = self.start(folder, "run", "--fleet", "w.yaml")
            if run.wait() != 0:
                sys.exit("error: the run failed")
            wall = (time.perf_counter() - began) / count
            worker.send_signal(signal.SIGTERM)
            worker.wait()
            one, _ = spawn_one_at_a_time(200)
            self.say(f"1 → {count} → 1 dependent steps, durability {durability}",
                     f"{wall * 1e3:.2f} ms a step", f"spawning `true` {one * 1e3:.2f} ms",
                     f"{wall / one:.2f}×", "", True)

    def many_runs(self):
        """A coordinator with many runs that wait for a worker which is not there."""
        count = 100 if self.quick else 1000
        folder = self.folder()
        self.put(folder, "w.yaml", f"""version: "1.1"
steps:
  - name: One
    agent: bench
    command: ["{TRUE}"]
""")
        began = time.perf_counter()
        for _ in range(count):
            subprocess.run([self.program, "--quiet", "submit", "w.yaml"], cwd=folder, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        submitted = (time.perf_counter() - began) / count
        began = time.perf_counter()
        coordinator = self.start(folder, "coordinator")
        inbox = os.path.join(folder, "inbox/bench")
        while not os.path.isdir(inbox) or len(os.listdir(inbox)) < count:
            time.sleep(0.01)
        taken = (time.perf_counter() - began) / count
        # Their first states are written meanwhile.
        time.sleep(8)
        idle, memory = self.idle(coordinator.pid, 5)
        worker = self.start(folder, "worker", "bench", "--concurrency", "2")
        began = time.perf_counter()
        waiting = os.path.join(folder, ".orchestrate/claimed/coordinator")
        while len(os.listdir(waiting)) > 0:
            time.sleep(0.01)
        ended = (time.perf_counter() - began) / count
        for process in (coordinator, worker):
            process.send_signal(signal.SIGTERM)
            process.wait()
        self.say(f"{count} runs: submitted, taken up, ended",
                 f"{submitted * 1e3:.1f}, {taken * 1e3:.2f}, {ended * 1e3:.2f} ms each", "", "",
                 "", True)
        self.say(f"coordinator with {count} runs waiting", f"{idle * 100:.2f} % CPU",
                 f"{memory / 2**20:.1f} MiB", "", "about 0 %", idle < 0.02)

    @staticmethod
    def idle(pid, seconds):
        def used():
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        def switches():
            total = 0
            for thread in os.listdir(f"/proc/{pid}/task"):
                for line in open(f"/proc/{pid}/task/{thread}/status"):
                    if line.startswith("voluntary_ctxt"):
                        total += int(line.split()[1])
            return total
        before, at, woke = used(), time.perf_counter(), switches()
        time.sleep(seconds)
        share = (used() - before) / (time.perf_counter() - at)
        Bench.wakes = (switches() - woke) / seconds
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("VmRSS"):
                return share, int(line.split()[1]) * 1024
        return share, 0

    def at_rest(self):
        folder = self.folder("durability: power\n")
        for what, args in (("worker", ["worker", "bench"]), ("coordinator", ["coordinator"])):
            process = self.start(folder, *args)
            time.sleep(2)
            share, memory = self.idle(process.pid, 4 if self.quick else 10)
            process.send_signal(signal.SIGTERM)
            process.wait()
            self.say(f"idle {what}", f"{share * 100:.2f} % CPU, {Bench.wakes:.1f} wake-ups/s",
                     f"{memory / 2**20:.1f} MiB", "", "about 0 %, < 15 MiB",
                     share < 0.01 and memory < 15 * 2**20)

    def table(self):
        heads = ("what", "value", "reference", "ratio", "goal", "met")
        rows = [heads] + [(*row[:5], "yes" if row[5] else "NO") for row in self.rows]
        widths = [max(len(str(row[i])) for row in rows) for i in range(6)]
        for number, row in enumerate(rows):
            print("| " + " | ".join(str(c).ljust(w) for c, w in zip(row, widths)) + " |")
            if number == 0:
                print("| " + " | ".join("-" * w for w in widths) + " |")


def spawn_one_at_a_time(count):
    began = time.perf_counter()
    for _ in range(count):
        os.waitpid(os.posix_spawn(TRUE, ["true"], os.environ), 0)
    return (time.perf_counter() - began) / count, count


def build_stamp(folder):
    """A program that writes the time of its first instruction into a fifo."""
    source, program = os.path.join(folder, "stamp.c"), os.path.join(folder, "stamp")
    with open(source, "w") as file:
        file.write("""#include <fcntl.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    int f = open(argv[argc - 1], O_WRONLY);
    return write(f, &now, sizeof now) != sizeof now;
}
""")
    built = subprocess.run(["cc", "-O1", "-o", program, source], check=False)
    return program if built.returncode == 0 else None


def bare_latency(folder, argv, reader, count):
    """p50 and p99 of spawning the same program with nothing around it, in milliseconds."""
    waits = []
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(count):
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        pid = os.posix_spawn(argv[0], argv, os.environ)
        arrived = int.from_bytes(os.read(reader, 8), "little")
        waits.append((arrived - began) / 1e6)
        os.waitpid(pid, 0)
    os.chdir(here)
    waits.sort()
    return waits[len(waits) // 2], waits[int(len(waits) * 0.99)]


PARTS = ["throughput", "enqueue", "latency", "depth", "chain", "many_runs", "at_rest"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release/orchestrate")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS, action="append")
    args = parser.parse_args()
    bench = Bench(os.path.abspath(args.bin), args.quick)
    random.seed(1)
    print(f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")
    try:
        for part in args.only or PARTS:
            getattr(bench, part)()
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    bench.table()


if __name__ == "__main__":
    main()
