"""The steps of servers.sh."""

import argparse
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import threading
import time
import urllib.request

from harness import Report, demand, is_alive, run, tail, wait_until
from ride import Machine

SOFT = os.environ.get("GPU") == "soft"
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = pathlib.Path(os.environ.get("EXAMPLES", HERE.parents[1] / "docs" / "examples"))
CACHE_GIB = os.environ.get("CACHE_GIB", "60")
TURNS = os.environ.get("TURNS", "10")
ANSWER_S = 120
PORT = 8011


def ask(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{path}", timeout=ANSWER_S) as answer:
        return answer.read()


def tokens(seed):
    return json.loads(ask(f"generate?seed={seed}&tokens=8"))["tokens"]


class Requests:
    """Sends requests continuously from several threads, and compares each answer with the first one
    for its seed."""

    def __init__(self, expected, threads=4):
        self.expected, self.stop = expected, threading.Event()
        self.answers, self.slowest, self.wrong = 0, 0.0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.go, args=(i,)) for i in range(threads)]
        for thread in self.threads:
            thread.start()

    def go(self, seed):
        while not self.stop.is_set():
            seed = (seed + 1) % len(self.expected)
            began = time.monotonic()
            try:
                wrong = None if tokens(seed) == self.expected[seed] else f"seed {seed} has another answer"
            except OSError as error:
                wrong = f"a request failed: {error}"
            with self.lock:
                self.answers += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
                if wrong:
                    self.wrong.append(wrong)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(ANSWER_S)
        demand(not self.wrong, f"{len(self.wrong)} of {self.answers}: {self.wrong[:3]}")
        return f"{self.answers} answers, all right; the slowest took {self.slowest:.2f} s"


class Server:
    def __init__(self, machine):
        words = ["--port", PORT, "--layers", 32, "--cache", 20, *(["--soft"] if SOFT else [])]
        self.machine = machine
        self.log = machine.log("server.out")
        machine.stasis(None, "run", "--job", "server", "--log", self.log, "--", sys.executable,
                       EXAMPLES / "generation_server.py", *words)
        wait_until(lambda: "READY" in self.text() or not self.pid(), 180, "the server being ready")
        demand("READY" in self.text(), f"it has ended:\n{tail(self.text(), 800)}")
        self.expected = [tokens(seed) for seed in range(6)]
        demand(len({str(answer) for answer in self.expected}) > 1, "its answers are empty")

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def pid(self):
        return self.machine.stasis(None, "inspect", "server").json()["pid"]

    def right(self):
        demand([tokens(seed) for seed in range(6)] == self.expected, "it answers otherwise than before")

    def end(self):
        self.machine.stasis(None, "kill", "server", "-s", "KILL", expect=None)
        self.machine.stasis(None, "wait", "server", expect=None)
        self.machine.stasis(None, "delete", "server", expect=None)


def under_requests(machine, server):
    """Suspends and resumes ten times, while four clients send requests."""
    report, requests = machine.report, Requests(server.expected)
    downs, ups, healthy = [], [], []
    try:
        for _ in range(10):
            downs.append(machine.stasis("server", "suspend", "server").json())
            began = time.monotonic()
            demand(ask("healthz") == b"ok\n", "requests without a GPU are not answered")
            healthy.append(time.monotonic() - began)
            answered = requests.answers
            time.sleep(0.3)
            demand(requests.answers == answered, "it answers without a GPU")
            ups.append(machine.stasis("server", "resume", "server").json())
            tokens(1)
    finally:
        note = requests.end()
    for name, accounts in [("suspend", downs), ("resume", ups)]:
        seconds = [account["total_s"] for account in accounts]
        report.number(f"{name}, first:", seconds[0], "s")
        report.number(f"{name}, median of the others:", statistics.median(seconds[1:]), "s")
    report.number("device memory:", downs[-1]["device_bytes"] / 2**30, "GiB")
    report.number("of which by the data plane:", downs[-1]["shared_bytes"] / 2**30, "GiB")
    report.number("/healthz while it is suspended, slowest:", 1000 * max(healthy), "ms")
    return note


def on_disk(machine, server):
    """Dumps and restores by name; then dumps with --leave-running, kills, and restores by name."""
    machine.stasis("server", "dump", "server", timeout_s=300)
    demand(machine.stasis(None, "inspect", "server").json()["state"] == "dumped", "it is not dumped")
    machine.stasis("server", "restore", "server", timeout_s=300)
    server.right()
    account = machine.stasis("server", "dump", "server", "--leave-running", timeout_s=300).json()
    machine.report.number("pause of a dump that leaves it running:", account["pause_s"], "s")
    server.right()
    pid = server.pid()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 30, "its end")
    machine.stasis("server", "restore", "server", timeout_s=300)
    server.right()
    return "answers as before, twice"


def turns(machine):
    words = ["--turns", TURNS, "--layers", 32, "--cache", CACHE_GIB, *(["--soft"] if SOFT else [])]
    env = dict(machine.env, PATH=f"{machine.dist}/bin:{machine.env['PATH']}", PYTHONUNBUFFERED="1")
    done = run([sys.executable, EXAMPLES / "take_turns.py", *words], 420, machine.log("turns"), env)
    demand(done.code == 0, f"exit code {done.code}:\n{tail(done.out + done.err, 1500)}")
    for name, pattern in [("turn, median:", r"median ([0-9.]+) s"), ("turn, worst:", r"worst ([0-9.]+) s")]:
        machine.report.number(name, float(re.search(pattern, done.out).group(1)), "s")
    return done.out


def main():
    parser = argparse.ArgumentParser(prog="servers.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "500")), "servers")
    machine = Machine(options.dist, report, SOFT)
    machine.stasis(None, "daemon", "start")
    server = []

    def started():
        server.append(Server(machine))
        return "its first answers are the standard"

    steps = [("server", 200, started),
             ("under-requests", 120, lambda: under_requests(machine, server[0])),
             ("on-disk", 200, lambda: on_disk(machine, server[0])),
             ("turns", 430, functools.partial(turns, machine))]
    try:
        for name, limit_s, function in steps:
            if options.steps and not any(name.startswith(prefix) for prefix in options.steps):
                continue
            if name == "turns" and server:
                server.pop().end()
            report.step(name, limit_s, function)
    finally:
        if server:
            server.pop().end()
        machine.stasis(None, "ps", expect=None)
        machine.stasis(None, "daemon", "drain", expect=None)
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
