"""The fleet on two real NFS clients: what each machine sees of the other, and what becomes of every task.

Each check prints one line. `--full` runs fan-outs of 1,000 and 6,000 nodes, and every scenario on NFS v3
too. Without it the fan-out is small and NFS v3 gets the scenarios about caches, so that everything fits
into three minutes on two idle cores.
"""

import argparse
import collections
import json
import os
import pathlib
import shlex
import signal
import sys
import time
import traceback
from datetime import datetime

from fleet import PATIENCE, PROGRAM, Fleet
from lab import EXPORT, Lab, wait_for

# A control command must be received by the other machine within this time.
CONTROL_SEC = 5.0
# Two subcommands take longer than this only if they wait for a cache to expire, which takes 30 to 60 s.
SLOW_SEC = 25.0
# The defaults, with a provider that needs no model.
CALM = """
default_provider: step
providers:
  step: { command: [/mnt/shared/step, '${PROMPT}'], input_mode: argv }
  local: { command: [/tmp/agent, '${PROMPT}'], input_mode: argv }
"""
FAST = f"{CALM}agents: {{ engineer: {{ concurrency: 4 }} }}\ndurability: process\n"
# A lease that can be waited for.
LEASE_SEC = 6
ROUGH = f"{FAST}queue: {{ beat_sec: 1, lease_sec: {LEASE_SEC}, crash_limit: 1000, drain_sec: 20 }}\n"


# No scenario takes longer than this unless something hangs.
LONG_SEC = 75.0


class TimeUp(Exception):
    """The limit of the lane is over."""


class Report:
    """What was checked."""

    def __init__(self, limit):
        self.passed, self.failed, self.begun, self.limit = 0, [], time.monotonic(), limit
        signal.signal(signal.SIGALRM, self.stop)
        signal.setitimer(signal.ITIMER_REAL, limit)

    def stop(self, *_):
        raise TimeUp

    def check(self, name, good, figures=""):
        at = time.monotonic() - self.begun
        print(f"{at:6.1f} s  {'ok    ' if good else 'FAILED'}  {name}{': ' if figures else ''}{figures}",
              flush=True)
        if good:
            self.passed += 1
        else:
            self.failed.append(name)
        return good

    def note(self, text):
        print(f"{time.monotonic() - self.begun:6.1f} s          {text}", flush=True)

    def scenario(self, function, *arguments):
        """Run one scenario, unless the time is up. A scenario that breaks off counts as failed, except
        if the limit of the lane ends it before it has taken long."""
        begun = time.monotonic()
        if self.limit and begun > self.begun + self.limit:
            print(f"SKIPPED: {function.__name__}: {self.limit} s are over", flush=True)
            return
        failed = len(self.failed)
        try:
            function(self, *arguments)
        except TimeUp:
            if time.monotonic() < begun + LONG_SEC:
                print(f"SKIPPED: the rest of {function.__name__}: {self.limit} s are over", flush=True)
            else:
                self.check(function.__name__, False, "not over in time")
        except Exception as problem:  # The next scenario is still worth a try.
            traceback.print_exc()
            self.check(function.__name__, False, f"broke off: {problem}")
        if len(self.failed) > failed and isinstance(arguments[0], Fleet):
            print(arguments[0].logs(), flush=True)


def clock(node):
    return float(node.run("date +%s.%N"))


def bash(name, script, **more):
    return {"id": name, "agent": "engineer", "bash": script, **more}


# Scenarios


def first_run(report, fleet):
    """The machine of the coordinator looked for the directories of runs before the first run was submitted."""
    fleet.start(fleet.b, "coordinator")
    fleet.await_members()
    fleet.look(fleet.b, "processed", "failed", "artifacts", ".orchestrate/runs")
    begun = time.monotonic()
    run = fleet.submit(fleet.a, bash("hello", "echo hello >> /tmp/trace"))
    taken = time.monotonic() - begun
    fleet.start(fleet.a, "worker", "engineer")
    end = fleet.ended(run, 90)
    report.check("the first run of a workspace is driven by the other machine", end == "completed" and taken < SLOW_SEC,
                 f"{end}, submitted in {taken:.0f} s, over in {time.monotonic() - begun:.0f} s")


def second_machine(report, fleet):
    """Both machines submit and execute."""
    fleet.start(fleet.b, "worker", "engineer")
    fleet.await_members()
    begun = time.monotonic()
    runs = [fleet.submit(node, *(bash(f"{node.name}{n}", f"echo {node.name}{n} >> /tmp/trace; sleep 1") for n in range(4)))
            for node in (fleet.a, fleet.b)]
    taken = time.monotonic() - begun
    ends = {fleet.ended(run, 90) for run in runs}
    times = [fleet.traces()[f"{name}{n}"] for name in "ab" for n in range(4)]
    report.check("runs submitted by both machines execute each step once", ends == {"completed"} and set(times) == {1}
                 and taken < SLOW_SEC,
                 f"{', '.join(ends)}, submitted in {taken:.0f} s, over in {time.monotonic() - begun:.0f} s")


def looked_before(report, fleet):
    """The machine of the coordinator looked for the place of the result while the other executed the step."""
    run = fleet.submit(fleet.a, bash("slow", "echo slow >> /tmp/trace; sleep 4"))
    wait_for("the step runs", lambda: fleet.traces()["slow"], PATIENCE, 0.3)
    fleet.look(fleet.b, f"processed/{run}", f"failed/{run}")
    end = fleet.ended(run, 90)
    times = fleet.traces()["slow"]
    report.check("a step whose result was looked for before it was there is executed once",
                 (end, times) == ("completed", 1), f"{times} times, {end}")


def members(report, fleet):
    seen = {node.name: fleet.lives(node) for node in (fleet.a, fleet.b)}
    wrong = [f"{who}: {life}, says {node}" for node, lives in seen.items() for who, life in lives.items()
             if life != "alive"]
    told = sum(len(lives) for lives in seen.values())
    report.check("each machine sees the members of both alive", not wrong and told == 2 * len(fleet.members),
                 "; ".join(wrong) or f"{told} answers")


def gone(node, pid):
    """When a process is gone: a script that ends with it, and prints the time."""
    return node.spawn(f"while kill -0 {pid} 2> /dev/null && [ $SECONDS -lt 75 ]; do sleep 0.1; done; date +%s.%N")


def received(report, what, seconds):
    report.check(f"{what} is received by the other machine within {CONTROL_SEC:.0f} s", seconds <= CONTROL_SEC,
                 f"{seconds:.1f} s")


def approve(report, fleet):
    run = fleet.submit(fleet.b, {"id": "gate", "approval": {"message": "Go on?"}},
                       {"id": "after", "depends_on": ["gate"], "bash": "echo after"})
    wait_for("the question", lambda: fleet.state(run).get("status") in ("waiting", "suspended", "paused")
             or "gate" in fleet.call(fleet.b, "pending"), PATIENCE, 0.5)
    fleet.look(fleet.b, f".orchestrate/runs/{run}/control")
    fleet.call(fleet.a, "approve", run)
    made = clock(fleet.a)
    end = fleet.ended(run, 90)
    report.check("an approved run completes", end == "completed", end)
    told = fleet.truth(f"grep '\"event\":\"answered\"' .orchestrate/runs/{run}/journal.jsonl")
    received(report, "approve", datetime.fromisoformat(json.loads(told)["at"]).timestamp() - made)


def cancel(report, fleet):
    run = fleet.submit(fleet.b, bash("long", "echo $$ > /tmp/long; exec sleep 300"))
    where = wait_for("the step runs", lambda: next(
        (node for node in fleet.lab.clients if node.run("cat /tmp/long 2> /dev/null; true").strip()), None), PATIENCE, 0.3)
    other = fleet.a if where is fleet.b else fleet.b
    end = gone(where, where.run("cat /tmp/long").strip())
    # The request is gone when it was heeded, so its time is noted meanwhile, on the server.
    code = ("import os, sys, time\nprint('ready', flush=True)\n"
            "while not os.listdir(sys.argv[1]): time.sleep(0.02)\nprint(time.time())")
    request = fleet.lab.server.spawn(
        f"timeout 60 python3 -c {shlex.quote(code)} {EXPORT}/{fleet.name}/.orchestrate/cancel")
    wait_for("the watch for the request", lambda: "ready" in request.output, PATIENCE)
    asked = other.spawn(f"cd {fleet.path}; {PROGRAM} cancel {run} > /tmp/said 2>&1")
    made = float(request.wait(PATIENCE).output.split()[-1])
    received(report, "cancel", float(end.wait(PATIENCE).output) - made)
    report.check("cancel returns when nothing of the run is left", asked.wait(PATIENCE).code == 0)


def pause(report, fleet):
    fleet.look(fleet.b, ".orchestrate/pause/engineer")
    fleet.call(fleet.a, "queue", "pause", "engineer")
    time.sleep(CONTROL_SEC)
    before = sum(fleet.traces().values())
    run = fleet.submit(fleet.a, bash("held", "echo held >> /tmp/trace"))
    wait_for("the task waits", lambda: fleet.truth("ls inbox/engineer").strip(), PATIENCE, 0.2)
    time.sleep(3)  # Workers look at least every two seconds.
    report.check("a paused agent's tasks are claimed on no machine", not fleet.traces()["held"])
    fleet.call(fleet.a, "queue", "resume", "engineer")
    made = clock(fleet.a)
    taken = float(fleet.truth("while ls inbox/engineer | grep -q .; do sleep 0.1; done; date +%s.%N"))
    received(report, "queue resume", taken - made)
    report.check("a resumed task is executed once", fleet.ended(run, 60) == "completed"
                 and sum(fleet.traces().values()) == before + 1)


def drain(report, fleet):
    worker = next(member for member in fleet.members if member.node is fleet.b and member.argv[0] == "worker")
    fleet.look(fleet.b, ".orchestrate/drain")
    end = gone(fleet.b, worker.pid)
    fleet.call(fleet.a, "workers", "drain", fleet.id_of(worker))
    made = clock(fleet.a)
    received(report, "workers drain", float(end.wait(PATIENCE).output) - made)
    fleet.members.remove(worker)


def suspended(report, fleet):
    """A provider's program is missing on one machine: the worker there returns its tasks, the other executes them."""
    fleet.a.run("cp /mnt/shared/step /tmp/agent")
    count = 8
    before = int(fleet.truth("find processed -name '*.task' | wc -l"))
    fleet.sh(fleet.b, f"seq {count} | {PROGRAM} --quiet enqueue engineer - --each-line --provider local > /dev/null")
    ended = lambda: int(fleet.truth("find processed -name '*.task' | wc -l")) - before
    wait_for("tasks end", lambda: ended() >= count, PATIENCE, 0.3)
    failed = fleet.truth("find failed -name '*.task'").split()
    report.check("tasks of a provider that one machine lacks are executed by the other",
                 ended() == count and not failed, f"{ended()} of {count} processed, {len(failed)} failed")
    notes = fleet.truth("cat .orchestrate/parked/* 2> /dev/null")
    report.check("and the machine that lacks it is suspended", "/tmp/agent" in notes or not notes, notes.strip()[:200])


def worktrees(report, fleet):
    """The other machine looked for the user of a worktree before there was one."""
    git = "git -c safe.directory='*' -c user.name=A -c user.email=a@example.org -c init.defaultBranch=main"
    fleet.sh(fleet.a, f"{git} init -q && echo '/*' > .gitignore && {git} add -f .gitignore && {git} commit -qm first")
    fleet.write(fleet.a, "bead.yaml", "{ id: b1, title: t }")
    for name, command in (("quick", "true"), ("slow", "touch /tmp/at-work; sleep 300")):
        fleet.write(fleet.a, f"{name}.yaml", f"name: {name}\nsteps:\n"
                    f"  - {{ name: work, type: script, command: '{command}' }}")
    # Both machines are root, and the volume belongs to root: git trusts it.
    fleet.sh(fleet.a, f"{PROGRAM} run --quiet quick.yaml --bead bead.yaml")
    fleet.look(fleet.b, ".git/coven/worktrees/b1/holder.json")
    run = fleet.start(fleet.a, "run", "--quiet", "slow.yaml", "--bead", "bead.yaml")
    wait_for("the step runs", lambda: fleet.a.run("ls /tmp/at-work 2> /dev/null; true").strip(), PATIENCE, 0.2)
    told = fleet.sh(fleet.b, f"{PROGRAM} worktree checkpoint b1 2>&1; echo $?")
    report.check("a worktree that the other machine uses is not taken", "in use by" in told, told.strip()[:200])
    run.signal("TERM")
    wait_for("the run ends", lambda: not run.alive(), PATIENCE, 0.2)


def shown(report, fleet):
    """A machine freezes: the other shows its members silent, then dead, with ages."""
    for node in (fleet.a, fleet.b):
        fleet.start(node, "worker", "engineer")
    fleet.await_members()
    def views():
        texts = {verb: fleet.call(fleet.a, *verb.split()) for verb in ("status", "ps", "workers ls", "metrics")}
        return texts, fleet.lives(fleet.a)
    wait_for("both are alive", lambda: set(fleet.lives(fleet.a).values()) == {"alive"}, PATIENCE, 0.3)
    fleet.b.freeze()
    try:
        wait_for("silence", lambda: fleet.lives(fleet.a)["engineer on b"] == "silent", PATIENCE, 0.2)
        texts, _ = views()
        missing = [verb for verb in ("status", "ps", "workers ls") if "last heartbeat" not in texts[verb]]
        ages = [line for line in texts["metrics"].splitlines() if "last_beat" in line and 'host="b"' in line]
        report.check("a silent member is shown with the age of its heartbeat", not missing and bool(ages),
                     f"not in {missing}; {ages}; " + "; ".join(
                         line.strip() for line in texts["workers ls"].splitlines() if "heartbeat" in line))
        wait_for("death", lambda: fleet.lives(fleet.a)["engineer on b"] == "dead", PATIENCE, 0.3)
        report.check("the other member stays alive", fleet.lives(fleet.a)["engineer on a"] == "alive")
    finally:
        fleet.b.thaw()


def fan_out(report, fleet, count):
    """Many nodes at once."""
    fleet.start(fleet.b, "coordinator")
    fleet.start(fleet.a, "worker", "engineer")
    fleet.start(fleet.b, "worker", "engineer")
    fleet.await_members()
    begun = time.monotonic()
    nodes = [{"id": f"n{number}", "agent": "engineer", "prompt": "go"} for number in range(count)]
    run = fleet.submit(fleet.a, *nodes)
    seen, last = 0, time.monotonic()
    while seen < count and time.monotonic() < last + PATIENCE:
        time.sleep(1)
        now = len(fleet.traces())
        if now > seen:
            seen, last = now, time.monotonic()
    end = fleet.ended(run, 60) if seen >= count else "not over"
    times = fleet.traces()
    twice = sum(1 for number in times.values() if number > 1)
    report.check(f"a fan-out of {count:,} nodes executes each once", (len(times), twice, end) == (count, 0, "completed"),
                 f"{len(times):,} executed, {twice} of them more than once, {end}, {time.monotonic() - begun:.0f} s")
    clean(report, fleet)


def clean(report, fleet):
    damage = fleet.damage(fleet.a)
    report.check(f"fsck is clean ({fleet.name})", not damage, "; ".join(damage[:3]))


def races(report, lab, count=300):
    """Both machines rename the same files: each file has one winner."""
    code = ("import os, sys, time\nwon = 0\n"
            "print('ready', flush=True)\n"
            "while not os.path.exists('/tmp/go'): time.sleep(0.005)\n"
            "for n in range(int(sys.argv[1])):\n"
            "    try: os.rename(f'race/{n}', f'race/{n}.{sys.argv[2]}'); won += 1\n"
            "    except FileNotFoundError: pass\n"
            "print(won)")
    a, b = lab.clients
    a.run(f"cd /mnt/volume && rm -rf race && mkdir race && rm -f /tmp/go && cd race && touch $(seq 0 {count - 1})")
    b.run("ls /mnt/volume /mnt/volume/race")
    calls = [node.spawn(f"cd /mnt/volume && python3 -c {shlex.quote(code)} {count} {node.name}") for node in (a, b)]
    wait_for("both are ready", lambda: all("ready" in call.output for call in calls), PATIENCE, 0.05)
    for start in [node.spawn("touch /tmp/go") for node in (a, b)]:
        start.wait(PATIENCE)
    won = [int(call.wait(PATIENCE).output.split()[-1]) for call in calls]
    left = int(lab.server.run(f"ls {EXPORT}/race | wc -l"))
    report.check("a file that both machines rename has one winner", sum(won) == left == count,
                 f"{won[0]} + {won[1]} won of {count}")


def hang(report, fleet):
    """The server stands still: a subcommand says so, and goes on with it."""
    fleet.lab.server.freeze()
    try:
        status = fleet.a.spawn(f"cd {fleet.path} && {PROGRAM} status 2>&1 > /dev/null")
        check = fleet.b.spawn(f"ORCHESTRATE_WORKSPACE={fleet.path} {PROGRAM} doctor --volume 2>&1")
        told = wait_for("a word", lambda: "respond" in status.output, 15, 0.2)
        doctor = check.wait(30)
    except TimeoutError:
        told, doctor = False, None
    finally:
        fleet.lab.server.thaw()
    report.check("doctor ends while the server hangs", doctor is not None and "did not answer" in doctor.output)
    report.check("a subcommand says that the volume is not responding", bool(told), status.output.strip())
    report.check("and completes when it responds again", status.wait(PATIENCE).code == 0)


def kill(fleet):
    for member in (fleet.members[0], fleet.members[3]):  # The coordinator of one machine, the worker of the other.
        member.signal("KILL")
        fleet.members.remove(member)
        fleet.start(member.node, *member.argv)


def freeze(fleet):
    fleet.b.freeze()
    time.sleep(LEASE_SEC * 1.5)
    seen = fleet.lives(fleet.a)
    fleet.b.thaw()
    return seen


def unplug(fleet):
    fleet.b.cable(False)
    time.sleep(LEASE_SEC * 1.5)
    fleet.b.cable(True)


def crash(fleet):
    fleet.lab.server.power_off()
    fleet.lab.restart_server()


def faults(report, fleet, deeds):
    """Work arrives, something breaks; in the end everything that was acknowledged has ended once."""
    for node in (fleet.a, fleet.b):
        fleet.start(node, "coordinator")
        fleet.start(node, "worker", "engineer")
    fleet.members.sort(key=lambda member: member.argv)
    fleet.await_members()
    runs = []
    for number, deed in enumerate(deeds):
        node = fleet.lab.clients[number % 2]
        runs.append(fleet.submit(node, *({"id": f"r{number}n{n}", "agent": "engineer", "prompt": "go"} for n in range(10))))
        fleet.enqueue(node, 30)
        seen = deed(fleet)
        if seen:
            wrong = [who for who, life in seen.items() if (life == "alive") == (who.endswith(" b"))]
            report.check("the members of a frozen machine are not shown alive, the others are", not wrong, str(seen))
    ends = collections.Counter(fleet.ended(run) for run in runs)
    report.check(f"runs complete ({fleet.name})", set(ends) == {"completed"}, str(dict(ends)))
    def tasks():
        names = fleet.truth("find processed failed -name '*.task'").split()
        return [name for name in names if not any(run in name for run in runs) and "-w.a" not in name]
    try:
        wait_for("tasks end", lambda: len(tasks()) >= fleet.acknowledged, PATIENCE, 0.5)
    except TimeoutError:
        pass
    names = tasks()
    ids = {os.path.basename(name).split(".")[0] for name in names}
    bad = [name for name in names if name.startswith("failed")]
    executed = fleet.traces()
    report.check(f"everything acknowledged ends once and well ({fleet.name})",
                 len(ids) == len(names) == fleet.acknowledged and not bad,
                 f"{fleet.acknowledged} tasks, {len(ids)} ended, {len(names) - len(ids)} twice, {len(bad)} badly; "
                 f"{sum(executed.values())} executions")
    for member in fleet.members:
        member.signal("TERM")
    wait_for("members leave", lambda: not any(member.alive() for member in fleet.members), PATIENCE, 0.3)
    clean(report, fleet)


def doctor(report, fleet):
    """The volume is measured from both machines."""
    asked = fleet.a.spawn(f"cd {fleet.path} && {PROGRAM} doctor --volume --remote 2>&1")
    line = wait_for("the command for the other machine", lambda: next(
        (line for line in asked.output.splitlines() if "doctor-peer" in line), None), PATIENCE)
    word = line.split("doctor-peer")[1].split()[0].strip("`")
    fleet.sh(fleet.b, f"{PROGRAM} doctor-peer {word} > /tmp/peer 2>&1; true", limit=PATIENCE)
    told = asked.wait(PATIENCE)
    report.check("doctor measures the volume from two machines", told.code == 0, told.output.splitlines()[-1])
    line = next((line for line in told.output.splitlines() if "absence:" in line), "not a word of it")
    report.check("doctor finds that the mount caches absent names", "negative cache" in line, line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--limit", type=int, default=0, metavar="SECONDS", help="end after this time")
    parser.add_argument("--only", default="", metavar="PART", help="run scenarios whose name contains this")
    parser.add_argument("--version", default="", metavar="N", help="mount only this version of NFS")
    asked = parser.parse_args()
    state, report = pathlib.Path(os.environ["LAB_STATE"]), Report(asked.limit)
    (state / "shared").mkdir()
    for name in ("orchestrate", "step"):
        os.link(state / name, state / "shared" / name)
    lab = Lab(state)
    try:
        lab.up()
        # The short part first, so that a slow machine leaves out a long one.
        for version in ("3", "4.2"):
            if not version.startswith(asked.version):
                continue
            report.scenario(scenarios, lab, version, asked)
    finally:
        lab.down()
    print(f"{report.passed} passed, {len(report.failed)} failed", flush=True)
    sys.exit(1 if report.failed else 0)


def scenarios(report, lab, version, asked):
    """Runs the scenarios on one version of NFS: all of them on v4.2, those about caches on v3."""
    lab.mount(version)
    whole = asked.full or version == "4.2"
    report.note(f"NFS v{version}: a server and two clients with the default mount; load {os.getloadavg()[0]:.1f}")

    def play(scenario, name, settings, *more):
        if asked.only in scenario.__name__:
            fleet = Fleet(lab, f"{name}-v{version[0]}", settings)
            report.scenario(scenario, fleet, *more)
            fleet.close()

    calm = Fleet(lab, f"calm-v{version[0]}", CALM)
    more = [second_machine, approve, pause, cancel, members, suspended, doctor, drain, clean] if whole else [approve, clean]
    for step in (first_run, looked_before, *more):
        if asked.only in step.__name__ or step in (first_run, second_machine):
            report.scenario(step, calm)
    calm.close()
    if whole and asked.only in "races":
        report.scenario(races, lab)
    if whole:
        play(faults, "rough", ROUGH, [kill, freeze, unplug, crash])
        play(hang, "hung", ROUGH)
        play(worktrees, "trees", CALM)
        if asked.full:
            play(shown, "shown", ROUGH)
        for count in (1000, 6000) if asked.full else (100,):
            play(fan_out, f"fan-{count}", FAST, count)


main()
