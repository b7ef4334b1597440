#!/usr/bin/env python3
"""Generation servers as managed jobs: requests wait during a suspend and none fails; a server is
dumped, restored by name, and gives the same answers; two that do not fit the GPU together take
turns (docs/examples)."""
import concurrent.futures
import json
import pathlib
import re
import socket
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "docs" / "examples"
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

ANSWER_S = 90


def free_ports(count):
    """Returns free ports of this test's own network namespace, where no other process uses them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=ANSWER_S) as answer:
        return answer.read()


def tokens(port, seed):
    return json.loads(ask(port, f"generate?seed={seed}&tokens=8"))["tokens"]


def one_server(world):
    (port,) = free_ports(1)
    started = world.stasis("run", "--json", "--job", "server", "--", sys.executable,
                           str(EXAMPLES / "generation_server.py"), "--port", str(port), "--soft").json()
    log = pathlib.Path(started["log"])
    wait_until(lambda: "READY" in log.read_text(), 90, lambda: f"it does not come up: {log.read_text()}")
    before = [tokens(port, seed) for seed in range(3)]
    demand(len({tuple(answer) for answer in before}) == 3, f"its answers are empty: {before}")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        world.stasis("suspend", "server")
        waiting = [pool.submit(tokens, port, seed) for seed in range(3)]
        demand(ask(port, "healthz") == b"ok\n", "requests without a GPU are not answered")
        demand(not any(request.done() for request in waiting), "it answers without a GPU")
        world.stasis("resume", "server")
        demand([request.result(ANSWER_S) for request in waiting] == before, "other answers after a resume")
    world.stasis("dump", "server")
    demand(world.stasis("inspect", "server", "--json").json()["state"] == "dumped", "it is not dumped")
    world.stasis("restore", "server")
    demand([tokens(port, seed) for seed in range(3)] == before, "other answers after a restore")
    world.stasis("kill", "server", "-s", "KILL")
    world.stasis("wait", "server", expect=137)
    world.stasis("delete", "server")


def two_servers(world):
    # Memory for one server, a second context, and a mover.
    world.set_gpu(1, "90M")
    world.env["SOFTGPU_DIR"] = str(world.folder / "small-gpu")
    world.stasis("gpu", "ls")
    ports = [str(port) for port in free_ports(2)]
    done = world.begin(str(EXAMPLES / "take_turns.py"), "--turns", "3", "--soft", "--ports", *ports,
                       program=sys.executable).wait()
    demand(done.code == 0, lambda: str(done))
    demand(len(re.findall(r"has the GPU", done.out)) == 3, lambda: str(done))
    # One server was suspended when it was killed. The next command that cleans up frees its data.
    world.stasis("recover")
    demand(len(re.findall(r": [1-9]\d* answers, all right", done.out)) == 2, lambda: str(done))


def shared_servers(world):
    """Three servers behind one address share a GPU for two."""
    world.set_gpu(1, "128M")
    world.env["SOFTGPU_DIR"] = str(world.folder / "shared-gpu")
    world.stasis("gpu", "ls")
    world.stasis("daemon", "start")
    address, *ports = free_ports(4)
    names = ["red", "green", "blue"]
    for name, port in zip(names, ports):
        started = world.stasis("run", "--json", "--share", "--job", name, "--", sys.executable,
                               str(EXAMPLES / "generation_server.py"), "--port", str(port), "--soft").json()
        log = pathlib.Path(started["log"])
        wait_until(lambda: "READY" in log.read_text(), 90, lambda: f"{name} does not come up: {log.read_text()}")
    proxy = world.begin(str(EXAMPLES / "model_proxy.py"), "--port", str(address),
                        *(f"{name}={port}" for name, port in zip(names, ports)), program=sys.executable)
    wait_until(lambda: "READY" in proxy.out, 60, lambda: str(proxy))

    def answers(name):
        return [json.loads(ask(address, f"{name}/generate?seed={seed}&tokens=8"))["tokens"] for seed in range(3)]

    first = {name: answers(name) for name in names}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asking = {pool.submit(answers, name): name for name in 2 * names}
        for request in concurrent.futures.as_completed(asking, ANSWER_S):
            demand(request.result() == first[asking[request]], f"{asking[request]} gives other answers")
    swaps = {share["job"]: share["swaps"] for share in world.stasis("share", "--json").json()["shares"]}
    demand(sum(swaps.values()) >= 2, f"swaps: {swaps}")
    proxy.process.kill()
    proxy.process.wait()
    for name in names:
        world.stasis("kill", name, "-s", "KILL")
        world.stasis("wait", name, expect=137)
        world.stasis("delete", name)
    world.stasis("arena", "free")  # of servers that were killed while they were suspended
    world.stasis("daemon", "drain")
    world.await_daemons_end()


def run(world):
    one_server(world)
    two_servers(world)
    shared_servers(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
