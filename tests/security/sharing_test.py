#!/usr/bin/env python3
"""Two users whose programs share GPUs through root's daemon."""
import json
import os
import pathlib
import shutil
import sys

import users
from processes import wait_until
from users import ALICE, BOB, Program, as_user, demand

SHARER = ["--memory", "8M"]

# Calls HoldShare, prints the answer or the error, and ends the connection.
HOLD = """
import queue, sys
sys.path.insert(0, sys.argv[1])
import grpc
from stasis.v1 import stasis_pb2, stasis_pb2_grpc
requests = queue.Queue()
begin = stasis_pb2.HoldShareRequest.Begin(target=sys.argv[3], method=sys.argv[4])
requests.put(stasis_pb2.HoldShareRequest(begin=begin))
stub = stasis_pb2_grpc.StasisStub(grpc.insecure_channel(f"unix:{sys.argv[2]}"))
call = stub.HoldShare(iter(requests.get, None))
try:
    print(next(call).shared)
except grpc.RpcError as error:
    print(error.code().name)
call.cancel()
requests.put(None)
"""


def shared(world, name, words=SHARER):
    program = Program(world, name, "counter", words)
    program.run("--share")
    wait_until(lambda: name in listed(world), 60, lambda: f"{name} is not listed")
    return program


def listed(world):
    return {share["job"]: share for share in world.stasis("share", "--json").json()["shares"]}


def begin(create, gpus=None):
    """`gpus`: settings of software GPUs that all use, in place of own ones for each user."""
    root, alice, bob = create(), create(ALICE), create(BOB)
    root.folder.chmod(0o755)
    socket = {"STASIS_SOCKET": str(root.folder / "socket")}
    for world in (root, alice, bob):
        world.env.update(socket)
        # Workers have the daemon's environment; by default each user has own software GPUs.
        del world.env["SOFTGPU_DIR"]
        world.env.update(gpus or {})
    root.stasis("daemon", "start")
    return root, alice, bob


def end(root, programs):
    for program in programs:
        program.finish()
    root.stasis("daemon", "drain")
    for uid in (0, ALICE, BOB):
        shutil.rmtree(f"/tmp/softgpu-{uid}", ignore_errors=True)


def each_sees_and_pins_only_own_programs(new):
    root, alice, bob = begin(new)
    programs = [shared(alice, "hers"), shared(bob, "his")]
    demand(set(listed(alice)) == {"hers"} and set(listed(bob)) == {"his"}, "a user sees another one's program")
    demand({(share["uid"], name) for name, share in listed(root).items()} == {(ALICE, "hers"), (BOB, "his")},
           "root does not see all")
    for word in ("hers", str(programs[0].pid)):
        bob.stasis("share", "pin", word, expect=3)
    bob.stasis("suspend", "hers", expect=3)
    bob.stasis("suspend", str(programs[0].pid), expect=4)
    demand(not listed(alice)["hers"]["pinned"] and listed(alice)["hers"]["state"] == "awake", "bob has changed it")
    alice.stasis("share", "pin", "hers")
    bob.stasis("share", "unpin", str(programs[0].pid), expect=3)
    demand(listed(alice)["hers"]["pinned"], "it is not pinned")
    end(root, programs)


def each_holds_only_own_programs(new):
    """The daemon lets go of a program for its owner and for root only, and for as long as the call lasts."""
    root, alice, bob = begin(new)
    hers = shared(alice, "hers")
    for target, method, of_bob, of_alice in [
            ("hers", "Dump", "False", "True"), (str(hers.pid), "Dump", "False", "True"),
            ("hers", "Restore", "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
            ("x" * 5000, "Dump", "INVALID_ARGUMENT", "INVALID_ARGUMENT")]:
        for world, expected in ((bob, of_bob), (alice, of_alice)):
            done = world.begin("-B", "-c", HOLD, str(root.build / "python"), str(root.folder / "socket"), target, method,
                               program=sys.executable).wait()
            demand(done.out.strip() == expected, lambda: f"{target[:9]} {method}: {done}")  # noqa: B023
    hers.expect_running()
    # Nothing is held any more: it can be swapped.
    alice.stasis("suspend", "hers")
    alice.stasis("resume", "hers")
    end(root, [hers])


def a_forged_record_does_not_lead_to_another_users_program(new):
    """Bob's job claims that Alice's process is its own. The daemon must not connect to her agent."""
    root, alice, bob = begin(new)
    hers, his = shared(alice, "hers"), shared(bob, "his")
    record = bob.state / "data" / "jobs" / "his" / "process.json"
    honest = record.read_text()
    forged = json.loads(honest)
    theirs = json.loads((alice.state / "data" / "jobs" / "hers" / "process.json").read_text())
    forged["root"] = theirs["root"]

    def write(text):
        demand(as_user(BOB, lambda: record.write_text(text)) == "", "bob cannot write his own file")

    write(json.dumps(forged))
    third = shared(bob, "third")  # the daemon surveys
    wait_until(lambda: "his" not in listed(bob), 60, lambda: f"{listed(bob)}")
    demand(set(listed(alice)) == {"hers"}, "her program has changed its owner")
    hers.expect_running()
    write(honest)
    end(root, [hers, his, third])


def one_gpu_for_two_users(new):
    """A program leaves for another user's program if the policy grants it, and not otherwise. No data can be read."""
    folder = "/tmp/one-gpu"
    os.mkdir(folder, 0o755)
    root, alice, bob = begin(new, {"SOFTGPU_DIR": folder, "SOFTGPU_MEMORY": "144M", "STASIS_HELPER_IDLE_S": "5"})
    # The broker of the GPU belongs to root and ends with the last program.
    keeper = Program(root, "keeper", "counter", ["--memory", "1M"]).spawn()
    hers = shared(alice, "hers", ["--memory", "64M"])
    hers.expect_running()
    his = shared(bob, "his", ["--memory", "64M"])
    his.expect_running()
    wait_until(lambda: listed(alice)["hers"]["state"] in ("suspended", "context kept"), 60,
               lambda: f"an idle program stays: {listed(root)}")
    arenas = pathlib.Path(f"/dev/shm/stasis-{ALICE}")
    data = list(arenas.rglob("[0-9]*.data"))
    demand(data, "her data is nowhere")
    for path in (*data, arenas, f"/proc/{hers.pid}/mem", alice.state / "data" / "jobs" / "hers" / "process.json"):
        for mode in (os.O_RDONLY, os.O_RDWR):
            error = as_user(BOB, lambda: os.open(path, mode))  # noqa: B023
            demand(error in ("PermissionError", "IsADirectoryError"), f"bob can open {path}: {error}")
    demand(not bob.stasis("arena", "ls", "--json").json()["arenas"], "bob sees her data")
    demand("hers" not in bob.stasis("share").out + bob.stasis("ps", "-a").out, "bob sees her program")
    hers.expect_running()
    alice.stasis("share", "pin", "hers")
    swaps = listed(alice)["hers"]["swaps"]
    # He wants the GPU, and resumes his own program by hand: neither makes hers leave.
    waiting = bob.begin("--timeout", 120000, his.port(), "next", program=bob.workloads / "udp_send")
    wait_until(lambda: (listed(bob)["his"]["waits_s"] or 0) > 3, 60, lambda: f"his does not wait: {listed(root)}")
    resume = bob.begin("resume", "his")
    wait_until(lambda: (listed(bob)["his"]["waits_s"] or 0) > 6, 60, lambda: f"his does not wait: {listed(root)}")
    demand(listed(alice)["hers"]["state"] == "awake" and listed(alice)["hers"]["swaps"] == swaps, "her program has left")
    hers.expect_running()
    alice.stasis("share", "unpin", "hers")
    demand(waiting.wait(120).code == 0 and resume.wait(120).code == 0, lambda: f"{waiting}\n{resume}")
    his.packets += 1
    his.expect_running()
    hers.expect_running()
    end(root, [hers, his])
    keeper.finish()
    wait_until(lambda: not root.named("softgpu-broker"), 60, "the broker does not end")
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(users.main(one_gpu_for_two_users, each_sees_and_pins_only_own_programs, each_holds_only_own_programs,
                        a_forged_record_does_not_lead_to_another_users_program))
