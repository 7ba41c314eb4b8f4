"""Network namespaces on one bridge: hosts for tests, which share the machine's processors and files. Needs root and iproute2.

Whoever makes a network removes it, also one that an earlier run left behind.
"""

import subprocess


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Network:
    """Namespaces of these names. The first has the address NET.10, the next NET.11; NET.1 is the machine itself."""

    def __init__(self, bridge, net, names):
        self.bridge, self.net, self.names = bridge, net, names

    def address(self, at):
        return f"{self.net}.{at + 10}"

    def devices(self, at):
        """The two ends of a namespace's cable: the machine's and its own."""
        return f"{self.bridge}-o{at}", f"{self.bridge}-i{at}"

    def make(self):
        self.remove()
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.net}.1/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for at, name in enumerate(self.names):
            outer, inner = self.devices(at)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            run("ip", "link", "set", inner, "netns", name)
            run("ip", "link", "set", outer, "master", self.bridge)
            run("ip", "link", "set", outer, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(at)}/24", "dev", inner)
            run("ip", "-n", name, "link", "set", inner, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def limit(self, at, rate):
        """Lets a namespace send and receive so many bits a second."""
        outer, inner = self.devices(at)
        limit = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]
        run("tc", "qdisc", "add", "dev", outer, *limit)
        run("tc", "-n", self.names[at], "qdisc", "add", "dev", inner, *limit)

    def remove(self):
        for at, name in enumerate(self.names):
            run("ip", "netns", "del", name, check=False)
            # The namespace takes its end of the cable along only if it is there.
            run("ip", "link", "del", self.devices(at)[0], check=False)
        run("ip", "link", "del", self.bridge, check=False)
