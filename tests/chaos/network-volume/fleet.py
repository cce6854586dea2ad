"""A fleet in the lab: a workspace on the volume, and its members on both machines."""

import collections
import json
import os
import shlex

from lab import EXPORT, wait_for

# For everything that has no limit of its own: a machine under load is slow.
PATIENCE = 150.0
PROGRAM = "/mnt/shared/orchestrate"


class Member:
    """A process of the fleet: a coordinator or a worker."""

    def __init__(self, node, pid, argv, log):
        self.node, self.pid, self.argv, self.log = node, pid, argv, log

    def alive(self):
        return self.node.run(f"kill -0 {self.pid} 2> /dev/null && echo yes; true").strip() == "yes"

    def signal(self, name):
        self.node.run(f"kill -{name} {self.pid} 2> /dev/null; true")


class Fleet:
    """A workspace on the volume, with members on both machines."""

    def __init__(self, lab, name, settings):
        self.lab, self.name = lab, name
        self.a, self.b = lab.clients
        self.path = f"/mnt/volume/{name}"
        self.members = []
        self.acknowledged = 0
        self.a.run(f"mkdir -p {self.path}/.orchestrate")
        self.write(self.a, ".orchestrate/config.yaml", settings)
        for node in lab.clients:
            node.run("> /tmp/trace")

    def sh(self, node, script, **more):
        """Run a script in the workspace."""
        return node.run(f"export HOME=/tmp TMPDIR=/tmp XDG_CONFIG_HOME=/tmp\ncd {self.path} || exit 99\n{script}",
                        **more)

    def truth(self, script):
        """What the server itself has in the workspace: no cache of a client is in between."""
        return self.lab.server.run(f"cd {EXPORT}/{self.name} && {script}; true")

    def call(self, node, *argv, **more):
        """Run a subcommand; its standard output."""
        return self.sh(node, f"{shlex.join([PROGRAM, *argv])} 2>> /tmp/said", **more)

    def write(self, node, name, text):
        self.sh(node, f"cat > {name} <<'END'\n{text}\nEND")

    def start(self, node, *argv):
        log = f"/tmp/{self.name}-{argv[0]}-{len(self.members)}.log"
        words = shlex.join([PROGRAM, *argv])
        pid = self.sh(node, f"setsid {words} > {log} 2>&1 < /dev/null & echo $!")
        self.members.append(Member(node, int(pid), argv, log))
        return self.members[-1]

    def await_members(self):
        """Wait until each member has shown a sign of life."""
        wait_for("every member serves", lambda: int(self.truth("ls .orchestrate/beats 2> /dev/null | wc -l"))
                 >= len(self.members), PATIENCE, 0.2)

    def look(self, node, *paths):
        """Look for names that are not there yet, so that the machine's cache keeps that they are not."""
        for path in paths:
            self.sh(node, f"ls -a {os.path.dirname(path)} > /dev/null; stat {path} 2> /dev/null; true")

    def submit(self, node, *nodes):
        text = "name: w\ndescription: w\nmutates_checkout: false\nnodes:\n"
        self.write(node, "w.yaml", text + "".join(f"  - {json.dumps(node)}\n" for node in nodes))
        return self.call(node, "--quiet", "submit", "w.yaml").split()[-1]

    def enqueue(self, node, count):
        self.sh(node, f"seq {count} | {PROGRAM} --quiet enqueue engineer - --each-line > /dev/null")
        self.acknowledged += count

    def state(self, run):
        """The recorded state of a run; nothing while there is none."""
        text = self.truth(f"cat .orchestrate/runs/{run}/state.json 2> /dev/null")
        return json.loads(text) if text.strip() else {}

    def ended(self, run, limit=PATIENCE):
        """Wait for the end of a run: how it ended, or why it is not driven."""
        def end():
            if self.state(run).get("status") in ("completed", "failed", "cancelled"):
                return self.state(run)["status"]
            # A run that was refused: its task has failed and the run has not.
            return self.truth(f"cat failed/*/*-w.a*.status.json 2> /dev/null | grep -F {run} | "
                              "grep -o '\"message\":\"[^\"]*\"' | head -n 1")
        try:
            return wait_for("end", end, limit, 0.3).strip()
        except TimeoutError:
            return f"not over after {limit:.0f} s"

    def traces(self):
        """How often each step was executed, on all machines together."""
        return collections.Counter("".join(node.run("cat /tmp/trace") for node in self.lab.clients).split())

    def damage(self, node):
        told = self.call(node, "fsck", "--quiet-fleet", "--json", check=False, limit=PATIENCE)
        found = json.loads(told[told.index("{"):])["findings"]
        return [f"{one['kind']} {one['about']}" for one in found if one["damage"]]

    def lives(self, node):
        """What a machine says of each member: its life, by host and pid."""
        told = json.loads(self.call(node, "workers", "ls", "--json"))
        return {f"{one['agent']} on {one['host']}": one["life"] for one in told["workers"]}

    def id_of(self, member):
        told = json.loads(self.call(member.node, "workers", "ls", "--json"))
        return next(one["worker"] for one in told["workers"]
                    if (one["host"], one["pid"]) == (member.node.name, member.pid))

    def logs(self):
        return "\n".join(f"{member.argv[0]} on {member.node.name}:\n" + member.node.run(f"tail -n 5 {member.log}")
                         for member in self.members)

    def close(self):
        for member in self.members:
            member.signal("KILL")
        self.members = []
