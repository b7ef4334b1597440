#!/usr/bin/env python3
"""Lets two generation servers that do not fit on one GPU together take turns on it.

    take_turns.py [--turns 10] [--layers 32] [--cache 40] [--soft]

Both are Stasis jobs. A turn suspends one server and resumes the other. Both get requests all the time. Requests to
the server without the GPU wait, and none fails. Every answer is compared with the answer to the same seed before the
first turn. The last lines print the times of the turns.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

SERVER = pathlib.Path(__file__).resolve().parent / "generation_server.py"
ANSWER_S = 120


def stasis(*words):
    done = subprocess.run(["stasis", "--json", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"stasis {' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


class Server:
    def __init__(self, name, port, options):
        self.name, self.port = name, port
        words = [sys.executable, SERVER, "--port", port, "--layers", options.layers, "--cache", options.cache]
        self.log = pathlib.Path(stasis("run", "--job", name, "--", *words, *(["--soft"] if options.soft else []))["log"])
        deadline = time.monotonic() + 300
        while "READY" not in self.log.read_text():
            if time.monotonic() > deadline or not stasis("inspect", name)["pid"]:
                sys.exit(f"{name} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)
        self.expected = {seed: self.ask(seed)[0] for seed in range(4)}
        self.answers, self.slowest = 0, 0.0

    def ask(self, seed):
        began = time.monotonic()
        url = f"http://127.0.0.1:{self.port}/generate?seed={seed}&tokens=8"
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return json.load(answer)["tokens"], time.monotonic() - began

    def ask_until(self, stop):
        while not stop.is_set():
            for seed, expected in self.expected.items():
                tokens, seconds = self.ask(seed)
                if tokens != expected:
                    raise RuntimeError(f"{self.name} answers {tokens} to seed {seed}; the first answer was {expected}")
                self.answers, self.slowest = self.answers + 1, max(self.slowest, seconds)


def is_suspended(server):
    return stasis("inspect", server.name)["state"] == "suspended"


def take_turns(first, second, turns):
    """Takes turns while `first` has the GPU and `second` is suspended. Returns the times of each turn."""
    times = []
    for _ in range(turns):
        began = time.monotonic()
        suspend = stasis("suspend", first.name)
        resume = stasis("resume", second.name)
        turn = time.monotonic() - began
        times.append((turn, suspend["total_s"], resume["total_s"], suspend["device_bytes"] / 2**30))
        print(f"{second.name} has the GPU: {turn:.2f} s (suspend {suspend['total_s']:.2f}, "
              f"resume {resume['total_s']:.2f}), {times[-1][3]:.1f} GiB", flush=True)
        second.ask(1)
        first, second = second, first
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cache", type=int, default=40)
    parser.add_argument("--ports", type=int, nargs=2, default=(8001, 8002))
    parser.add_argument("--soft", action="store_true")
    options = parser.parse_args()
    blue = Server("blue", options.ports[0], options)
    stasis("suspend", "blue")
    green = Server("green", options.ports[1], options)
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asking = {server: pool.submit(server.ask_until, stop) for server in (blue, green)}
        try:
            times = take_turns(green, blue, options.turns)
        finally:
            stop.set()
            # Wait for the last request to the server with the GPU, then for the last one to the other server.
            for server in sorted(asking, key=is_suspended):
                if is_suspended(server):
                    stasis("suspend", (green if server is blue else blue).name)
                    stasis("resume", server.name)
                asking[server].exception()
        for asked in asking.values():
            asked.result()
    for server in (blue, green):
        print(f"{server.name}: {server.answers} answers, all right; the slowest waited {server.slowest:.2f} s")
    ordered = sorted(turn for turn, *_ in times)
    print(f"{len(times)} turns: median {ordered[len(ordered) // 2]:.2f} s, worst {ordered[-1]:.2f} s")
    for server in (blue, green):
        stasis("kill", server.name, "-s", "KILL")
        subprocess.run(["stasis", "wait", server.name], stdout=subprocess.DEVNULL, check=False)
        stasis("delete", server.name)


if __name__ == "__main__":
    main()
