"""The steps of sharing.sh."""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from harness import Report, demand, tail, wait_until
from ride import Machine

SOFT = os.environ.get("GPU") == "soft"
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = pathlib.Path(os.environ.get("EXAMPLES", HERE.parents[1] / "docs" / "examples"))
SIZE_GIB = int(os.environ.get("SIZE_GIB", "25"))
FILLER_GIB = int(os.environ.get("FILLER_GIB", "0"))
PAIR_GIB = int(os.environ.get("PAIR_GIB", "30"))
REQUESTS_S = float(os.environ.get("SECONDS_OF_REQUESTS", "20" if SOFT else "300"))
LAYERS, MODEL_GIB = 16, 8  # bfloat16
ANSWER_S = 60
SEEDS = 4
TOKENS = 8
GIB = 1 << 30


class Server:
    """A generation server as a job that shares its GPU."""

    def __init__(self, machine, number, gib):
        self.machine, self.name, self.port, self.gib = machine, f"server{number}", 8020 + number, gib
        self.starts = 0
        self.expected = None

    def start(self):
        """Returns the seconds until its first answer."""
        began = time.monotonic()
        self.starts += 1
        log = self.machine.log(f"{self.name}.{self.starts}.out")
        words = ["--port", self.port, "--layers", LAYERS, "--cache", self.gib - MODEL_GIB, *(["--soft"] if SOFT else [])]
        self.machine.stasis(None, "run", "--share", "--job", self.name, "--log", log, "--", sys.executable,
                            EXAMPLES / "generation_server.py", *words)

        def output():
            return log.read_text(errors="replace") if log.exists() else ""
        wait_until(lambda: "READY" in output() or "Error" in output(), 180, f"{self.name} being ready")
        demand("READY" in output(), f"{self.name}:\n{tail(output(), 800)}")
        answers = [self.ask(seed) for seed in range(SEEDS)]
        demand(self.expected in (None, answers), f"{self.name} answers otherwise after a new start")
        demand(len({str(answer) for answer in answers}) > 1, "its answers are empty")
        self.expected = answers
        return time.monotonic() - began

    def ask(self, seed):
        url = f"http://127.0.0.1:{self.port}/generate?seed={seed}&tokens={TOKENS}"
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return json.loads(answer.read())["tokens"]

    def check(self, seed):
        """Returns the seconds until the answer, which must be right."""
        began = time.monotonic()
        answer = self.ask(seed)
        seconds = time.monotonic() - began
        demand(answer == self.expected[seed], f"{self.name}: seed {seed} has another answer")
        return seconds

    def end(self):
        for words in (["kill", self.name, "-s", "KILL"], ["wait", self.name], ["delete", self.name]):
            self.machine.stasis(None, *words, expect=None)


def shares(machine):
    """Returns the rows of `stasis share`, by job."""
    return {row["job"]: row for row in machine.stasis(None, "share").json()["shares"]}


def started(machine, servers):
    """The last ones need room that the first ones must give."""
    for server in servers:
        machine.report.number(f"{server.name}, until its first answers:", server.start(), "s")
    rows = shares(machine)
    demand(any(row["swaps"] for row in rows.values()), f"all of them fit at once; choose larger ones: {rows}")
    return "\n".join(f"{name}: {row['state']}, {row['swaps']} swaps" for name, row in rows.items())


class Client(threading.Thread):
    """Asks one server at random times, in bursts."""

    def __init__(self, machine, server, until):
        super().__init__()
        self.machine, self.server, self.until = machine, server, until
        self.random = random.Random(server.name)
        self.awake, self.asleep, self.failures = [], [], []

    def run(self):
        while time.monotonic() < self.until and not self.failures:
            time.sleep(min(self.random.expovariate(1 / (1 if SOFT else 8)), 30))
            for _ in range(self.random.randrange(1, 4)):
                try:
                    state = shares(self.machine)[self.server.name]["state"]
                    seconds = self.server.check(self.random.randrange(SEEDS))
                    (self.awake if state == "awake" else self.asleep).append(seconds)
                except Exception as error:  # noqa: BLE001 - reported by the step
                    self.failures.append(f"{self.server.name}: {error}")
                    return


def under_requests(machine, servers):
    before, began = shares(machine), time.monotonic()
    clients = [Client(machine, server, began + REQUESTS_S) for server in servers]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took, after = time.monotonic() - began, shares(machine)
    failures = [failure for client in clients for failure in client.failures]
    demand(not failures, "\n".join(failures))
    report = machine.report
    for state in ("awake", "asleep"):
        seconds = sorted(second for client in clients for second in getattr(client, state))
        demand(seconds, f"no request came to a server that was {state}")
        report.number(f"requests to a server that was {state}:", len(seconds), "")
        report.number("  median time to the answer:", statistics.median(seconds), "s")
        report.number("  95 % took at most:", seconds[int(0.95 * (len(seconds) - 1))], "s")
        report.number("  slowest:", seconds[-1], "s")
    swaps = sum(after[name]["swaps"] - before[name]["swaps"] for name in after)
    lost = sum(after[name]["lost_s"] - before[name]["lost_s"] for name in after)
    report.number("swaps:", swaps, "")
    report.number("time that they took, of the time of the run:", 100 * lost / took, "%")
    problems = [f"{name}: {row['problem']}" for name, row in after.items() if row["problem"]]
    demand(not problems and not any(row["failed_swaps"] for row in after.values()), "\n".join(problems) or f"{after}")
    return "all answers right"


def restarted(machine, servers):
    """Restarts a server as often as there is time for, instead of resuming it."""
    seconds = []
    for _ in range(3):
        servers[0].end()
        seconds.append(servers[0].start())
    machine.report.number("a server that is started again, until its first answers, median:", statistics.median(seconds), "s")
    return "answers as before"


def total_gib():
    return int(subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout) >> 10


@contextlib.contextmanager
def filled(machine, gib):
    """Meanwhile a program that does not share the GPU has so much of its memory."""
    if gib == 0:
        yield
        return
    log = machine.log("filler.out")
    with open(log, "w") as out:
        filler = subprocess.Popen([sys.executable, "-c", "import torch, sys\n"
                                   f"x = torch.empty({gib} << 30, dtype=torch.uint8, device='cuda')\n"
                                   "print('READY', flush=True)\nsys.stdin.read()"],
                                  stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        wait_until(lambda: "READY" in log.read_text() or filler.poll() is not None, 60, "the filler being ready")
        yield
    finally:
        filler.kill()
        filler.wait()


def alternating(machine):
    """Two programs, of which one fits: the rest of the GPU is filled by a program that does not share it."""
    pair = [Server(machine, 8 + n, PAIR_GIB) for n in range(2)]
    gib = 0 if SOFT else max(0, total_gib() - int(1.5 * PAIR_GIB) - 2)
    with contextlib.ExitStack() as outside:
        for server in pair:
            outside.callback(server.end)
        outside.enter_context(filled(machine, gib))
        for server in pair:
            server.start()
        before, times = shares(machine), []
        for turn in range(12):
            times.append(pair[turn % 2].check(turn % SEEDS))
            time.sleep(1.5)
        after = shares(machine)
        swaps = sum(after[name]["swaps"] - before[name]["swaps"] for name in after)
        lost = sum(after[name]["lost_s"] - before[name]["lost_s"] for name in after)
        demand(swaps >= 10, f"{swaps} swaps in 12 turns: {after}")
        machine.report.number("swap, out and in, mean:", lost / swaps, "s", None if SOFT else ("<=", 1.5))
        machine.report.number("from the request to the answer, median:", statistics.median(times), "s")
        machine.report.number("  slowest:", max(times), "s")
        return f"{swaps} swaps, all answers right"


def main():
    parser = argparse.ArgumentParser(prog="sharing.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "560")), "sharing")
    machine = Machine(options.dist, report, SOFT)
    if SOFT:
        machine.env["SOFTGPU_MEMORY"] = "88M"  # a server has 32 MiB, and a context of 16 MiB
    machine.stasis(None, "daemon", "start")
    servers = [Server(machine, number, SIZE_GIB) for number in range(4)]
    steps = [("servers", 200, functools.partial(started, machine, servers)),
             ("requests", REQUESTS_S + 90, functools.partial(under_requests, machine, servers)),
             ("restarted", 150, functools.partial(restarted, machine, servers)),
             ("alternating", 200, functools.partial(alternating, machine))]
    beside = contextlib.ExitStack()
    try:
        beside.enter_context(filled(machine, FILLER_GIB))
        for name, limit_s, function in steps:
            if options.steps and not any(name.startswith(prefix) for prefix in options.steps):
                continue
            if name == "alternating":
                for server in servers:
                    server.end()
                beside.close()
            report.step(name, limit_s, function)
    finally:
        machine.stasis(None, "share", expect=None)
        beside.close()
        for server in servers:
            server.end()
        machine.stasis(None, "daemon", "drain", expect=None)
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
