"""Hosts for tests: network namespaces with names, addresses and sshd of their own, on one bridge.

They share the machine's files, processors and process ids; everything between them goes over TCP. With a rate, what a
host sends and receives is limited to so many bits a second. Needs root, iproute2 and OpenSSH's server.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

BRIDGE = "surefoot1"
NET = "10.231.78"


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Hosts:
    """`with Hosts(2) as hosts:` makes host-1 and host-2, and removes them at the end."""

    def __init__(self, count, rate=None):
        self.names = [f"host-{at}" for at in range(1, count + 1)]
        self.rate = rate
        self.servers = []
        self.folder = Path(tempfile.mkdtemp(prefix="surefoot-hosts-"))
        # A short name: Open MPI puts sockets below it, whose paths are limited.
        self.scratch = Path(tempfile.mkdtemp(prefix="sf", dir="/tmp"))

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        self.remove_network()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for key in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        (self.folder / "sshd").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/user_key.pub\nStrictModes no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nPidFile none\n"
        )
        (self.folder / "ssh").write_text(
            f"Host *\n  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        addresses = "".join(f"{NET}.{at + 10} {name}\n" for at, name in enumerate(self.names))
        for at, name in enumerate(self.names):
            outer, inner = f"sfm{at}", f"sfn{at}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            run("ip", "link", "set", inner, "netns", name)
            run("ip", "link", "set", outer, "master", BRIDGE)
            run("ip", "link", "set", outer, "up")
            run("ip", "-n", name, "addr", "add", f"{NET}.{at + 10}/24", "dev", inner)
            run("ip", "-n", name, "link", "set", inner, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            if self.rate:
                limit = ["root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "200ms"]
                run("tc", "qdisc", "add", "dev", outer, *limit)
                run("tc", "-n", name, "qdisc", "add", "dev", inner, *limit)
            # `ip netns exec` puts the files of this folder in the place of those in /etc.
            own = Path("/etc/netns") / name
            own.mkdir(parents=True, exist_ok=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
            self.servers.append(
                subprocess.Popen(
                    [*self.on(name), "/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / "sshd")],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                )
            )
        for name in self.names:
            deadline = time.monotonic() + 120
            while self.command(self.names[0], ["ssh", "-F", str(self.folder / "ssh"), name, "true"]).returncode != 0:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"sshd on {name} does not answer")
                time.sleep(0.2)

    def on(self, name):
        """The beginning of a command that runs on a host."""
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", name]

    def environment(self):
        """For Open MPI: ssh with the key of these hosts, as root, no other network."""
        return {
            **os.environ,
            "TMPDIR": str(self.scratch),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": f"ssh -F {self.folder}/ssh",
            # Ranks share this machine's processors: they must not spin while they wait.
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def command(self, name, command, **options):
        return subprocess.run([*self.on(name), *command], capture_output=True, text=True, **options)

    def start(self, name, command, **options):
        return subprocess.Popen(
            [*self.on(name), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def remove_network(self):
        for name in self.names:
            run("ip", "netns", "del", name, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        for at in range(len(self.names)):
            run("ip", "link", "del", f"sfm{at}", check=False)
        run("ip", "link", "del", BRIDGE, check=False)

    def remove(self):
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait()
        self.remove_network()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
