#!/usr/bin/env python3
"""Two users whose programs share GPUs through root's daemon."""
import json
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


def shared(world, name):
    program = Program(world, name, "counter", SHARER)
    program.run("--share")
    wait_until(lambda: name in listed(world), 60, lambda: f"{name} is not listed")
    return program


def listed(world):
    return {share["job"]: share for share in world.stasis("share", "--json").json()["shares"]}


def begin(create):
    root, alice, bob = create(), create(ALICE), create(BOB)
    root.folder.chmod(0o755)
    socket = {"STASIS_SOCKET": str(root.folder / "socket")}
    for world in (root, alice, bob):
        world.env.update(socket)
        del world.env["SOFTGPU_DIR"]  # workers have the daemon's environment; each user has own software GPUs
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


if __name__ == "__main__":
    sys.exit(users.main(each_sees_and_pins_only_own_programs, each_holds_only_own_programs,
                        a_forged_record_does_not_lead_to_another_users_program))
