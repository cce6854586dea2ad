"""A fleet across two mounts of one export: who wins each claim, and what becomes of every task.

Half of the workers see the workspace through one mount, half through the other. Workers are killed
and frozen past their lease. What was acknowledged must end exactly once, be executed at least once, and be found whole.
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

PROGRAM, SERVER = os.environ["ORCHESTRATE"], os.environ["SFTP_SERVER"]
SETTINGS = """
queue: { beat_sec: 0.5, lease_sec: 4, poll_ms: 50, idle_poll_ms: 500, crash_limit: 1000, drain_sec: 20 }
durability: process
default_provider: step
agents: { engineer: { concurrency: 2 } }
providers:
  step: { command: ["%s"], input_mode: stdin }
"""
STEP = """#!/bin/sh
cat > /dev/null
echo "$ORCHESTRATE_STEP" >> "$TRACE"
echo '{"success": true, "summary": "done"}'
"""


class Mount:
    """One machine's view of the export."""

    def __init__(self, base, export, name):
        self.path = base / name
        self.path.mkdir()
        # What stands in for ssh: the server itself, on the same two pipes.
        self.ssh = base / f"ssh-{name}"
        self.ssh.write_text(f"#!/bin/sh\nexec {SERVER}\n")
        self.ssh.chmod(0o755)
        options = f"ssh_command={self.ssh},dir_cache=no,cache=no,attr_timeout=0,entry_timeout=0"
        argv = ["sshfs", f"host:{export}", str(self.path), "-o", options, "-f"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        while not os.path.ismount(self.path):
            assert time.monotonic() < limit and self.process.poll() is None, "sshfs did not mount"
            time.sleep(0.05)

    def close(self):
        subprocess.run(["fusermount3", "-uz", str(self.path)], check=False)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Fleet:
    def __init__(self, base, export, mounts):
        self.base, self.export, self.mounts = base, export, mounts
        self.trace = base / "trace"
        self.trace.write_text("")
        step = base / "step"
        step.write_text(STEP)
        step.chmod(0o755)
        home = base / "home"
        home.mkdir()
        (export / ".orchestrate").mkdir()
        (export / ".orchestrate/config.yaml").write_text(SETTINGS % step)
        self.env = dict(os.environ, TRACE=str(self.trace), HOME=str(home), TMPDIR=str(home))
        self.env.pop("XDG_CONFIG_HOME", None)
        self.log = open(base / "log", "ab")
        self.workers = [None] * 4
        self.acknowledged = 0
        self.deeds = collections.Counter()

    def start(self):
        for number, worker in enumerate(self.workers):
            if worker is None or worker.poll() is not None:
                argv = [PROGRAM, "--quiet", "worker", "engineer"]
                self.workers[number] = subprocess.Popen(
                    argv, cwd=self.mounts[number % 2].path, env=self.env, stdout=self.log,
                    stderr=self.log, stdin=subprocess.DEVNULL)

    def orchestrate(self, number, *argv, **more):
        return subprocess.run([PROGRAM, *argv], cwd=self.mounts[number].path, env=self.env,
                              text=True, capture_output=True, timeout=300, **more)

    def enqueue(self, number, tasks):
        text = "".join(f"Task {self.acknowledged + n}.\n" for n in range(tasks))
        said = self.orchestrate(number, "enqueue", "engineer", "-", "--each-line", "--quiet",
                                input=text)
        assert said.returncode == 0, said.stderr
        self.acknowledged += tasks

    def ended(self):
        names = []
        for folder in ("processed", "failed"):
            for _, _, files in os.walk(self.export / folder):
                names += [name for name in files if name.endswith(".task")]
        return names

    def kill(self, number):
        self.workers[number].kill()
        self.workers[number].wait()
        self.deeds["kill -9"] += 1

    def freeze(self, number, seconds):
        self.workers[number].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.workers[number].send_signal(signal.SIGCONT)
        self.deeds["SIGSTOP"] += 1

    def leave(self):
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                self.deeds["did not leave"] += 1

    def verdict(self, name):
        wrong, names = [], self.ended()
        ids = collections.Counter(name.split(".")[0] for name in names)
        if len(ids) < self.acknowledged:
            wrong.append(f"{self.acknowledged - len(ids)} tasks are lost or did not end")
        if any(count > 1 for count in ids.values()):
            wrong.append("a task ended twice")
        executions = self.trace.read_text().splitlines()
        if len(set(executions)) < self.acknowledged:
            wrong.append(f"{self.acknowledged - len(set(executions))} were never executed")
        if self.deeds["did not leave"]:
            wrong.append("a worker did not leave")
        # A dead worker's traces go with its lease.
        for _ in range(5):
            judged = self.orchestrate(0, "fsck", "--quiet-fleet", "--json")
            findings = json.loads(judged.stdout or "{}").get("findings", [])
            # Whoever was killed here may live elsewhere, as far as anybody can tell.
            damage = [f for f in findings if f["damage"] and f["kind"] != "left-tmp"]
            if not damage:
                break
            time.sleep(3)
        else:
            wrong.append(f"fsck: {damage}")
        deeds = ", ".join(f"{count} {what}" for what, count in sorted(self.deeds.items()))
        print(f"network volume: {name}: {self.acknowledged} tasks acknowledged, {len(ids)} ended, "
              f"{len(executions)} executions; {deeds or 'no deeds'}: "
              f"{'; '.join(wrong) if wrong else 'no violation'}", flush=True)
        return not wrong


def races(base, tasks):
    """Two who rename the same file, one through each mount: exactly one may win."""
    wins = collections.Counter()
    code = ("import os,sys\n"
            "root, count, me = sys.argv[1], int(sys.argv[2]), sys.argv[3]\n"
            "won = 0\n"
            "for n in range(count):\n"
            "    try: os.rename(f'{root}/race/{n}', f'{root}/race/{n}.{me}'); won += 1\n"
            "    except FileNotFoundError: pass\n"
            "print(won)\n")
    race = base.export / "race"
    race.mkdir()
    for number in range(tasks):
        (race / str(number)).write_text("")
    argv = [[sys.executable, "-c", code, str(mount.path), str(tasks), str(number)]
            for number, mount in enumerate(base.mounts)]
    racers = [subprocess.Popen(argument, stdout=subprocess.PIPE, text=True) for argument in argv]
    for number, racer in enumerate(racers):
        wins[number] = int(racer.communicate(timeout=300)[0])
    left = len(list(race.iterdir()))
    well = sum(wins.values()) == tasks and left == tasks
    print(f"network volume: races: {tasks} files, {wins[0]} + {wins[1]} won, {left} there: "
          f"{'no violation' if well else 'VIOLATED'}", flush=True)
    subprocess.run(["rm", "-rf", str(race)], check=True)
    return well


def torture(fleet, tasks, chance):
    fleet.start()
    for turn in range(8):
        fleet.enqueue(turn % 2, tasks // 8)
        time.sleep(chance.uniform(0.5, 1.5))
        if turn % 3 == 2:
            fleet.freeze(chance.randrange(4), 6)
        else:
            fleet.kill(chance.randrange(4))
        fleet.start()
    limit = time.monotonic() + 240
    while len(fleet.ended()) < fleet.acknowledged and time.monotonic() < limit:
        fleet.start()
        time.sleep(0.5)
    fleet.leave()
    return fleet.verdict("torture")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    base = pathlib.Path(tempfile.mkdtemp(prefix="orchestrate-network-"))
    export = base / "export"
    export.mkdir()
    print(f"network volume: seed {asked.seed}, one export, two sshfs mounts", flush=True)
    mounts, fleet, well = [], None, False
    try:
        mounts = [Mount(base, export, name) for name in ("one", "two")]
        fleet = Fleet(base, export, mounts)
        well = races(fleet, asked.tasks)
        well = torture(fleet, asked.tasks, random.Random(asked.seed)) and well
    finally:
        for worker in fleet.workers if fleet else []:
            if worker and worker.poll() is None:
                worker.kill()
        for mount in mounts:
            mount.close()
    if well:
        subprocess.run(["rm", "-rf", str(base)], check=False)
    else:
        print(f"network volume: what the workers said is in {base}/log", flush=True)
    sys.exit(0 if well else 1)


main()
