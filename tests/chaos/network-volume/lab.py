"""Three machines on one: an NFS server and two clients, each a user-mode Linux with a kernel of its own.

Everything lives in namespaces of this process (see `run`): when it ends, its processes, its network and
its mounts end too. Each machine is in a control group of its own, by which it is frozen and cut off.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ADDRESSES = {"s": "10.77.0.21", "a": "10.77.0.22", "b": "10.77.0.23"}
PORT = 7070
EXPORT = "/tmp/disk/export"


def host(*argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def has_link(name):
    return any(name == other for _, other in socket.if_nameindex())


def wait_for(what, condition, limit=60.0, every=0.1):
    """The first true answer of `condition`, asked again and again."""
    end = time.monotonic() + limit
    while True:
        if found := condition():
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {limit:.0f} s")
        time.sleep(every)


class Call:
    """A script that runs on a node. `output` grows while it runs; `code` is None until it has ended."""

    def __init__(self, node, script):
        self.output, self.code = "", None
        self.socket = socket.create_connection((node.address, PORT), timeout=10)
        self.socket.settimeout(None)
        self.socket.sendall(script.encode())
        self.socket.shutdown(socket.SHUT_WR)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        kept = b""
        try:
            while chunk := self.socket.recv(65536):
                kept += chunk
                self.output = kept.split(b"\0")[0].decode(errors="replace")
        except OSError:
            pass
        self.code = int(kept.split(b"\0")[1]) if b"\0" in kept else 255
        self.socket.close()

    def wait(self, limit):
        self.reader.join(limit)
        if self.code is None:
            raise TimeoutError(f"no end within {limit:.0f} s; so far: {self.output[-1000:]}")
        return self


class Node:
    """One machine."""

    def __init__(self, lab, name, disk=None):
        self.lab, self.name, self.disk = lab, name, disk
        self.address = ADDRESSES[name]
        self.group = lab.group / name
        self.process = None

    def boot(self):
        tap = f"tap-{self.name}"
        if not has_link(tap):
            host("ip", "tuntap", "add", "dev", tap, "mode", "tap")
        host("ip", "link", "set", tap, "master", "bridge", "up")
        self.group.mkdir(exist_ok=True)
        argv = ["linux.uml", "mem=512M", f"umid={self.name}", f"uml_dir={self.lab.state}/uml",
                "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
                f"init={HERE}/node.sh", f"vec0:transport=tap,ifname={tap},depth=128,gro=1",
                f"NODE={self.name}", f"ADDRESS={self.address}", f"SHARED={self.lab.shared}",
                "con=null", "con0=null,fd:1"]
        if self.disk:
            argv.append(f"ubda={self.disk}")
        log = open(self.lab.state / f"{self.name}.console", "ab")
        procs = self.group / "cgroup.procs"
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=dict(os.environ, **self.lab.environment),
            preexec_fn=lambda: procs.write_text(str(os.getpid())))
        log.close()

    def ready(self):
        def up():
            if self.process.poll() is not None:
                raise OSError(f"machine {self.name} ended while it booted")
            try:
                return Call(self, "true").wait(10).code == 0
            except OSError:
                return False
        wait_for(f"machine {self.name} is up", up)

    def spawn(self, script):
        return Call(self, script)

    def run(self, script, limit=120.0, check=True):
        call = Call(self, script).wait(limit)
        if check and call.code != 0:
            raise RuntimeError(f"on {self.name}: exit {call.code}: {script[:300]}\n{call.output[-1000:]}")
        return call.output

    def power_off(self):
        """Every process of the machine dies at once, as in a power cut."""
        (self.group / "cgroup.kill").write_text("1")
        self.process.wait(30)

    def freeze(self):
        (self.group / "cgroup.freeze").write_text("1")
        wait_for("frozen", lambda: "frozen 1" in (self.group / "cgroup.events").read_text(), 10, 0.02)

    def thaw(self):
        (self.group / "cgroup.freeze").write_text("0")

    def cable(self, plugged):
        """Plug the cable in or pull it. (The port leaves the bridge: a tap that goes down wedges the driver.)"""
        host("ip", "link", "set", f"tap-{self.name}", *(["master", "bridge"] if plugged else ["nomaster"]))


class Lab:
    def __init__(self, state):
        self.state = state
        self.shared = state / "shared"
        self.shared.mkdir(exist_ok=True)
        shutil.copy(HERE / "agent.py", self.shared)
        self.group = pathlib.Path(os.environ["LAB_GROUP"])
        self.environment = {"LD_PRELOAD": os.environ["LAB_PRELOAD"]} if os.environ.get("LAB_PRELOAD") else {}
        disk = state / "disk"
        with open(disk, "wb") as file:
            file.truncate(2 << 30)
        host("mkfs.ext4", "-q", "-F", str(disk))
        self.server = Node(self, "s", disk)
        self.clients = [Node(self, "a"), Node(self, "b")]

    def up(self):
        if not has_link("bridge"):
            host("ip", "link", "set", "lo", "up")
            host("ip", "link", "add", "bridge", "type", "bridge")
            host("ip", "addr", "add", "10.77.0.1/24", "dev", "bridge")
            host("ip", "link", "set", "bridge", "up")
        for node in (self.server, *self.clients):
            node.boot()
        for node in (self.server, *self.clients):
            node.ready()
        self.export(1)
        # There are no locks yet that a client could reclaim.
        self.server.run("echo Y > /proc/fs/nfsd/v4_end_grace")
        for node in self.clients:
            node.run("""set -e
                for module in nfs nfsv3 nfsv4; do modprobe -d /tmp/modules $module; done
                rpcbind -w; rpc.statd""")

    def export(self, grace):
        """Serve the volume. No lock is given for `grace` seconds, in which clients may reclaim theirs."""
        self.server.run(f"""set -e
            load="modprobe -d /tmp/modules"
            $load ext4; $load nfsd
            mkdir -p /tmp/disk
            mountpoint -q /tmp/disk || mount /dev/ubda /tmp/disk
            mkdir -p {EXPORT}; chmod 777 {EXPORT}
            # Which clients hold locks must survive a crash.
            for kept in v4recovery sm; do
              mkdir -p /tmp/disk/$kept; mount --bind /tmp/disk/$kept /var/lib/nfs/$kept
            done
            mount -t nfsd nfsd /proc/fs/nfsd
            rpcbind -w; rpc.statd
            exportfs -o rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0 "*:{EXPORT}"
            # The least that can be set: the defaults are 50 s and 90 s.
            echo {grace} > /proc/sys/fs/nfs/nlm_grace_period
            echo 10 > /proc/fs/nfsd/nfsv4gracetime; echo 10 > /proc/fs/nfsd/nfsv4leasetime
            rpc.nfsd -V 3 -V 4 8
            rpc.mountd""")

    def mount(self, version):
        """Mount the volume on both clients with this version of NFS and default options."""
        source = f"{self.server.address}:{EXPORT if version == '3' else '/'}"
        for node in self.clients:
            node.run(f"""umount -l /mnt/volume 2> /dev/null
                mount -t nfs -o vers={version} {source} /mnt/volume""")

    def restart_server(self):
        self.server.boot()
        self.server.ready()
        self.export(10)

    def down(self):
        for node in (*self.clients, self.server):
            if node.process and node.process.poll() is None:
                node.power_off()

