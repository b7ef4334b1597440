"""groups_test.py --build DIR [--only CASE]: a program started or restored through the daemon is in
the control groups of the requesting command or program, not in the daemon's."""

import os
import pathlib
import sys

from house import House, demand, isolate, main

from control_groups import Group
from users_test import ALICE, User, for_all, leave


def restored(house: House):
    house.start()
    job = house.counter()
    for controller in ("memory", None):
        with Group(controller) as group:
            job.dump()
            house.world.shell(group.command(["stasis", "restore", "job"]))
            job.find_pid()
            job.packets = job.packets_in[job.image]
            demand(group.holds(job.pid), pathlib.Path(f"/proc/{job.pid}/cgroup").read_text())
            demand(not group.holds(house.pid), "the daemon has moved")
            job.expect_running()
            # Now requested from outside: the program leaves the group.
            job.dump()
            job.restore()
            demand(not group.holds(job.pid), pathlib.Path(f"/proc/{job.pid}/cgroup").read_text())
    house.end(job)


def started_by_a_program(house: House):
    house.start()
    messages, stubs = house.stubs()
    counter = str(house.world.workloads / "counter")
    with Group("memory") as group:
        child = os.fork()
        if child == 0:
            (group.folder / "cgroup.procs").write_text(str(os.getpid()))
            request = messages.RunRequest(job="job", argv=[counter, "--memory", "8M"])
            stubs.StasisStub(house.channel()).Run(request, timeout=60)
            os._exit(0)
        demand(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it cannot be run")
        pid = house.world.stasis("inspect", "job", "--json").json()["pid"]
        demand(group.holds(pid), pathlib.Path(f"/proc/{pid}/cgroup").read_text())
        house.world.stasis("kill", "job", "-s", "KILL")
        house.world.stasis("wait", "job", expect=137)
    house.world.stasis("delete", "job")


def refused_where_it_cannot_be(house: House):
    """A user's own daemon cannot move processes into root's groups: it returns an error and starts
    nothing."""
    for_all(house)
    alice = User(house, ALICE)
    alice.env["STASIS_SOCKET"] = str(alice.home / "socket")
    alice.stasis("daemon", "start")
    words = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", "--", house.build / "bin" / "stasis",
             "restore", "absent"]
    with Group("memory") as group:
        house.world.shell(group.command(words), expect=4, env=alice.env)
    demand("control group" in house.world.last.err and "--no-daemon" in house.world.last.err, f"{house.world.last}")
    alice.stasis("daemon", "drain")
    leave(house)


if __name__ == "__main__":
    try:
        for wanted in ("memory", None):
            with Group(wanted):
                pass
    except isolate.Unable as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(isolate.SKIPPED)
    sys.exit(main([restored, started_by_a_program, refused_where_it_cannot_be]))
