#!/usr/bin/env python3
"""Two users whose programs share GPUs through root's daemon."""
import json
import shutil
import sys

import users
from processes import wait_until
from users import ALICE, BOB, Program, as_user, demand

SHARER = ["--memory", "8M"]


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
    sys.exit(users.main(each_sees_and_pins_only_own_programs, a_forged_record_does_not_lead_to_another_users_program))
