#!/usr/bin/env python3
"""Three replicas of `surefoot serve` behind HAProxy, each on a host of its own (a network namespace),
under 64 clients while replicas are killed, stopped and restarted.

Every request has to get exactly one answer, the right one, whatever happens to the replicas. As OpenAI's
clients do, these send a request once more, under the same id, if its connection was closed before any answer
came or the proxy had none (502 to 504): a replica that is killed may reset a connection, and HAProxy 2.6 passes that on. How often that was is
printed. The times that clients see are printed for a calm phase and for each disturbance. Needs root (for namespaces),
iproute2 and HAProxy.

    deploy/test_replicas.py target/release/surefoot crates/surefoot-models/tests/fixtures/gpt2-tiny
    deploy/test_replicas.py PROGRAM MODEL --most-slowdown 3      fails if p99 is slower than 3 x calm
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
BRIDGE = "surefoot0"
NET = "10.231.77"
PROXY = "surefoot-p"
REPLICAS = ["surefoot-1", "surefoot-2", "surefoot-3"]
PORT = 8080
PROMPTS = [[5 + at, 6 + at % 7] for at in range(32)]


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=not check)


def remove_hosts():
    for name in [PROXY, *REPLICAS]:
        run("ip", "netns", "del", name, check=False)
    run("ip", "link", "del", BRIDGE, check=False)


def make_hosts():
    remove_hosts()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for at, name in enumerate([PROXY, *REPLICAS]):
        outer, inner = f"sfh{at}", f"sfc{at}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        run("ip", "link", "set", inner, "netns", name)
        run("ip", "link", "set", outer, "master", BRIDGE)
        run("ip", "link", "set", outer, "up")
        run("ip", "-n", name, "addr", "add", f"{NET}.{at + 10}/24", "dev", inner)
        run("ip", "-n", name, "link", "set", inner, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")


class Replica:
    def __init__(self, at, options):
        self.host = f"{NET}.{at + 11}"
        self.options = options
        self.name = REPLICAS[at]
        self.start()

    def start(self):
        program, model = self.options.program, self.options.model
        # `exec` in a namespace: the process that is started is the server itself.
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, program, "serve", model, "--name", "model",
             "--host", self.host, "--port", str(PORT), "--allow-anyone", "--max-sequences", "32"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if ask(self.host, "GET", "/ready")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended with exit code {self.process.returncode}")
            time.sleep(0.1)
        sys.exit(f"{self.name} is not ready after 60 s")

    def end(self, with_signal):
        self.process.send_signal(with_signal)
        return self.process.wait(timeout=120)


def ask(host, method, path, body=None):
    connection = http.client.HTTPConnection(host, PORT, timeout=60)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def completion(prompt):
    return {"model": "model", "prompt": prompt, "max_tokens": 16, "temperature": 0}


class Clients:
    """Clients that ask one request after the other until they are stopped."""

    def __init__(self, count, expected):
        self.expected = expected
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.seconds = []
        self.wrong = []
        self.resent = 0
        self.threads = [threading.Thread(target=self.work, args=(at,)) for at in range(count)]
        for thread in self.threads:
            thread.start()

    def work(self, client):
        connection = http.client.HTTPConnection(f"{NET}.10", PORT, timeout=120)
        number = client
        while not self.stop.is_set():
            at = number % len(PROMPTS)
            number += 1
            own = uuid.uuid4().hex
            begun = time.monotonic()
            headers = {"Content-Type": "application/json", "x-request-id": own}
            for last in (False, True):
                try:
                    connection.request("POST", "/v1/completions", json.dumps(completion(PROMPTS[at])), headers)
                    answer = connection.getresponse()
                    if answer.status < 500 or last:
                        break
                    # The proxy's own answer: no replica gave one.
                    answer.read()
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    if last:
                        self.note(None, f"lost: {error!r}")
                        answer = None
                if not last:
                    with self.lock:
                        self.resent += 1
            if answer is None:
                continue
            try:
                body, status, given = answer.read(), answer.status, answer.getheader("x-request-id")
            except (OSError, http.client.HTTPException) as error:
                self.note(None, f"broken off: {error!r}")
                connection.close()
                continue
            took = time.monotonic() - begun
            if status != 200:
                self.note(took, f"status {status}: {body[:200]!r}")
            elif given != own:
                self.note(took, f"the answer to {given} came for {own}")
            elif json.loads(body)["choices"][0]["text"] != self.expected[at]:
                self.note(took, f"another text than the replicas give when they are calm: {body[:200]!r}")
            else:
                self.note(took, None)
        connection.close()

    def note(self, took, wrong):
        with self.lock:
            if took is not None:
                self.seconds.append(took)
            if wrong:
                self.wrong.append(wrong)

    def phase(self, name, work):
        with self.lock:
            self.seconds, self.wrong, self.resent = [], [], 0
        begun = time.monotonic()
        work()
        lasted = time.monotonic() - begun
        with self.lock:
            seconds, wrong = sorted(self.seconds), self.wrong
        at = lambda share: seconds[min(len(seconds) - 1, int(share * len(seconds)))]
        result = {"phase": name, "seconds": round(lasted, 1), "answers": len(seconds), "lost_or_wrong": len(wrong), "resent": self.resent,
                  "p50_ms": round(1e3 * at(0.5), 1), "p99_ms": round(1e3 * at(0.99), 1)}
        print(json.dumps(result), flush=True)
        for line in wrong[:5]:
            print("   ", line, flush=True)
        return result

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--calm", type=float, default=6, help="seconds of the calm phase")
    parser.add_argument("--most-slowdown", type=float, help="fail if a disturbed p99 is more than this times the calm one")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    replicas, proxy, clients = [], None, None
    make_hosts()
    try:
        replicas = [Replica(at, options) for at in range(3)]
        texts = []
        for prompt in PROMPTS:
            one = [json.loads(ask(replica.host, "POST", "/v1/completions", completion(prompt))[1])["choices"][0]["text"]
                   for replica in replicas]
            if len(set(one)) != 1:
                sys.exit(f"the replicas don't agree: {one}")
            texts.append(one[0])
        addresses = {f"REPLICA_{at + 1}": f"{replica.host}:{PORT}" for at, replica in enumerate(replicas)}
        proxy = subprocess.Popen(
            ["ip", "netns", "exec", PROXY, "haproxy", "-db", "-f", str(HERE / "haproxy.cfg")],
            env={**os.environ, **addresses, "LISTEN": f"{NET}.10:{PORT}"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for _ in range(100):
            try:
                if ask(f"{NET}.10", "GET", "/ready")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.1)
        clients = Clients(options.clients, texts)
        time.sleep(1)

        def crash():
            replicas[0].end(signal.SIGKILL)
            time.sleep(3)
            replicas[0].start()
            time.sleep(1)

        def stop():
            code = replicas[1].end(signal.SIGTERM)
            if code != 0:
                sys.exit(f"a replica that was asked to stop ended with exit code {code}")
            time.sleep(3)
            replicas[1].start()
            time.sleep(1)

        def roll():
            for replica in replicas:
                replica.end(signal.SIGTERM)
                replica.start()
                time.sleep(1)

        results = [
            clients.phase("calm", lambda: time.sleep(options.calm)),
            clients.phase("kill -9 of one replica", crash),
            clients.phase("SIGTERM to another", stop),
            clients.phase("rolling restart of all", roll),
        ]
    finally:
        if clients:
            clients.end()
        for replica in replicas:
            replica.process.kill()
        if proxy:
            proxy.kill()
        remove_hosts()
    failed = sum(result["lost_or_wrong"] for result in results)
    slowdown = max(result["p99_ms"] for result in results[1:]) / results[0]["p99_ms"]
    print(f"{sum(result['answers'] for result in results)} answers, {failed} lost or wrong; "
          f"p99 at most {slowdown:.2f} x the calm one")
    if failed or (options.most_slowdown and slowdown > options.most_slowdown):
        sys.exit(1)


if __name__ == "__main__":
    main()
