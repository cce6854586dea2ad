"""A fleet on a volume that fails, and a checker that judges what became of every task.

What was acknowledged must end exactly once, be executed at least once, and leave a volume that
`orchestrate fsck --quiet-fleet` finds whole. Runs in user and mount name spaces of its own.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["ORCHESTRATE"]
SETTINGS = """
queue: { beat_sec: 0.2, lease_sec: 1.5, poll_ms: 20, idle_poll_ms: 200, crash_limit: 1000, drain_sec: 5 }
durability: power
default_provider: step
agents: { engineer: { concurrency: 4 } }
providers:
  step: { command: ["%s"], input_mode: stdin }
"""
# The trace is elsewhere: it must be written when the volume cannot be.
STEP = """#!/bin/sh
cat >/dev/null
echo x >> "$TRACE"
echo '{"success": true, "summary": "done"}'
"""


def sh(*argv):
    subprocess.run(argv, check=True)


class Fleet:
    """Workers on a small volume, killed and started again at will."""

    def __init__(self, base, size, workers):
        self.base = pathlib.Path(base)
        self.volume = self.base / "volume"
        self.volume.mkdir()
        sh("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.volume))
        self.work = self.volume / "workspace"
        (self.work / ".orchestrate").mkdir(parents=True)
        step = self.base / "step"
        step.write_text(STEP)
        step.chmod(0o755)
        (self.work / ".orchestrate/config.yaml").write_text(SETTINGS % step)
        self.trace = self.base / "trace"
        self.trace.write_text("")
        home = self.base / "home"
        home.mkdir()
        self.env = dict(os.environ, TRACE=str(self.trace), HOME=str(home), TMPDIR=str(home))
        self.env.pop("XDG_CONFIG_HOME", None)
        self.log = open(self.base / "log", "ab")
        self.count = workers
        self.workers = []
        self.acknowledged = 0
        self.refused = 0
        self.deeds = collections.Counter()

    def orchestrate(self, *argv, **more):
        return subprocess.run([PROGRAM, *argv], cwd=self.work, env=self.env, text=True,
                              capture_output=True, timeout=300, **more)

    def start(self):
        while len(self.workers) < self.count:
            argv = [PROGRAM, "--quiet", "worker", "engineer"]
            self.workers.append(subprocess.Popen(argv, cwd=self.work, env=self.env, stdout=self.log,
                                                 stderr=self.log, stdin=subprocess.DEVNULL))

    def bury(self):
        self.workers = [worker for worker in self.workers if worker.poll() is None]

    def kill(self, how_many=1):
        for worker in self.workers[:how_many]:
            worker.kill()
            worker.wait()
            self.deeds["kill -9"] += 1
        self.bury()

    def freeze(self, seconds):
        """Longer than a lease: others take what it holds."""
        worker = self.workers[-1]
        worker.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        worker.send_signal(signal.SIGCONT)
        self.deeds["SIGSTOP"] += 1

    def enqueue(self, tasks):
        """Acknowledged all or none at all: what failed may not count."""
        text = "".join(f"Task {self.acknowledged + n}.\n" for n in range(tasks))
        said = self.orchestrate("enqueue", "engineer", "-", "--each-line", "--quiet", "--json",
                                input=text)
        if said.returncode == 0:
            self.acknowledged += tasks
        else:
            assert "error" in said.stdout + said.stderr, f"no reason: {said}"
            self.refused += 1
        return said.returncode == 0

    def ended(self):
        found = collections.Counter()
        for folder in ("processed", "failed"):
            for _, _, files in os.walk(self.work / folder):
                found[folder] += sum(name.endswith(".task") for name in files)
        return found

    def await_end(self, seconds):
        """Waits until all that was acknowledged has ended, then sends everybody home."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            self.bury()
            self.start()
            if sum(self.ended().values()) >= self.acknowledged:
                break
            time.sleep(0.2)
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                self.deeds["did not leave"] += 1

    def verdict(self, name):
        ended, wrong = self.ended(), []
        executed = self.trace.read_text().count("x")
        done, failed = ended["processed"], ended["failed"]
        # One that was not acknowledged may have been put out all the same.
        if done + failed < self.acknowledged:
            wrong.append(f"{self.acknowledged - done - failed} tasks are lost or did not end")
        if not self.refused and done + failed > self.acknowledged:
            wrong.append("more ended than there were")
        if executed < done:
            wrong.append(f"{done - executed} were never executed")
        if self.deeds["did not leave"]:
            wrong.append("a worker did not leave")
        for _ in range(3):
            judged = self.orchestrate("fsck", "--quiet-fleet", "--json")
            if judged.returncode == 0:
                break
            time.sleep(2)
        else:
            findings = json.loads(judged.stdout or "{}").get("findings", judged.stderr)
            wrong.append(f"fsck: {findings}")
        deeds = ", ".join(f"{count} {what}" for what, count in sorted(self.deeds.items()))
        line = (f"faults: {name}: {self.acknowledged} tasks acknowledged, {done} done, "
                f"{failed} failed, {executed} executions; {deeds or 'no deeds'}")
        print(f"{line}: {'; '.join(wrong) if wrong else 'no violation'}", flush=True)
        return not wrong

    def close(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        subprocess.run(["umount", "-l", str(self.volume)], check=False)


def full_disk(fleet, chance, _):
    """The volume is filled to its last byte, and emptied again."""
    fleet.start()
    ballast = fleet.volume / "ballast"
    for _ in range(4):
        fleet.enqueue(40)
        # Without a buffer, which would be written once more when the file is closed.
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass
        fleet.deeds["filling"] += 1
        fleet.enqueue(5)
        time.sleep(chance.uniform(1, 2.5))
        if chance.random() < 0.5:
            fleet.kill()
            fleet.start()
        ballast.unlink()
        time.sleep(0.3)
    if fleet.enqueue(10) is False:
        print("faults: full disk: enqueue fails on a disk with room", flush=True)
        return False
    fleet.await_end(120)
    return True


def remount(fleet, how):
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        argv = ["mount", "-o", f"remount,{how}", str(fleet.volume)]
        if subprocess.run(argv, capture_output=True).returncode == 0:
            return True
        time.sleep(0.01)
    return False


def read_only(fleet, chance, _):
    """The volume becomes read-only under the workers, as after an error of its medium."""
    fleet.start()
    for turn in range(4):
        fleet.enqueue(40)
        time.sleep(chance.uniform(0.1, 0.5))
        live = remount(fleet, "ro")
        if not live:
            # Somebody always writes: all of them die, and the volume is so when they come back.
            fleet.kill(fleet.count)
            live = remount(fleet, "ro")
            fleet.start()
        assert live, "the volume cannot be made read-only"
        fleet.deeds["remount"] += 1
        accepted = fleet.enqueue(5)
        assert not accepted, "acknowledged on a volume that cannot be written"
        time.sleep(chance.uniform(1, 2.5))
        if turn == 2:
            fleet.kill(1)
        assert remount(fleet, "rw"), "the volume cannot be made writable"
        fleet.bury()
        fleet.start()
    fleet.await_end(120)
    return True


def no_inotify(fleet, chance, _):
    """The kernel tells nobody of changes any more: work is found by looking."""
    limit = pathlib.Path("/proc/sys/user/max_inotify_instances")
    before = limit.read_text()
    limit.write_text("0")
    fleet.deeds["inotify taken"] += 1
    try:
        fleet.start()
        for _ in range(5):
            fleet.enqueue(20)
            time.sleep(chance.uniform(0.1, 0.5))
        fleet.await_end(120)
    finally:
        limit.write_text(before)
    return True


def many(fleet, chance, tasks):
    """Ten thousand tasks, with workers killed and frozen all the while."""
    while fleet.acknowledged < tasks:
        assert fleet.enqueue(min(1000, tasks - fleet.acknowledged)), "enqueue failed"
    fleet.start()
    deadline = time.monotonic() + 400
    while sum(fleet.ended().values()) < tasks and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.5, 1.5))
        if chance.random() < 0.25:
            fleet.freeze(2.5)
        else:
            fleet.kill()
        fleet.bury()
        fleet.start()
    fleet.await_end(60)
    return True


SCENARIOS = {
    "full disk": (full_disk, "6m", 2),
    "read-only remount": (read_only, "64m", 2),
    "inotify exhausted": (no_inotify, "64m", 2),
    "many tasks": (many, "1500m", 3),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO")
    asked = parser.parse_args()
    print(f"faults: seed {asked.seed}", flush=True)
    good = True
    for name, (scenario, size, workers) in SCENARIOS.items():
        if asked.scenario and name not in asked.scenario:
            continue
        base = tempfile.mkdtemp(prefix="orchestrate-faults-")
        fleet = Fleet(base, size, workers)
        try:
            well = scenario(fleet, random.Random(asked.seed), asked.tasks)
            well = fleet.verdict(name) and well
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"faults: {name}: {error}", flush=True)
            well = False
        finally:
            fleet.close()
        if well:
            subprocess.run(["rm", "-rf", base], check=False)
        else:
            print(f"faults: {name}: what the workers said is in {base}/log", flush=True)
        good = good and well
    sys.exit(0 if good else 1)


main()
