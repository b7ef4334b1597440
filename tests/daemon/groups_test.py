"""groups_test.py --build DIR [--only CASE]: a program started or restored through the daemon is in
the control groups of the requesting command or program, not in the daemon's."""

import os
import pathlib
import sys

from daemon_fixture import DaemonFixture, demand, isolate, main

from control_groups import Group
from users_test import ALICE, User, for_all, leave


def restored(fixture: DaemonFixture):
    fixture.start()
    job = fixture.counter()
    for controller in ("memory", None):
        with Group(controller) as group:
            job.dump()
            fixture.world.shell(group.command(["stasis", "restore", "job"]))
            job.find_pid()
            job.packets = job.packets_in[job.image]
            demand(group.holds(job.pid), pathlib.Path(f"/proc/{job.pid}/cgroup").read_text())
            demand(not group.holds(fixture.pid), "the daemon has moved")
            job.expect_running()
            # Dump and restore from outside of the group: the program leaves the group.
            job.dump()
            job.restore()
            demand(not group.holds(job.pid), pathlib.Path(f"/proc/{job.pid}/cgroup").read_text())
    fixture.end(job)


def started_by_a_program(fixture: DaemonFixture):
    fixture.start()
    messages, stubs = fixture.stubs()
    counter = str(fixture.world.workloads / "counter")
    with Group("memory") as group:
        child = os.fork()
        if child == 0:
            (group.folder / "cgroup.procs").write_text(str(os.getpid()))
            request = messages.RunRequest(job="job", argv=[counter, "--memory", "8M"])
            stubs.StasisStub(fixture.channel()).Run(request, timeout=60)
            os._exit(0)
        demand(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it cannot be run")
        pid = fixture.world.stasis("inspect", "job", "--json").json()["pid"]
        demand(group.holds(pid), pathlib.Path(f"/proc/{pid}/cgroup").read_text())
        fixture.world.stasis("kill", "job", "-s", "KILL")
        fixture.world.stasis("wait", "job", expect=137)
    fixture.world.stasis("delete", "job")


def refused_where_it_cannot_be(fixture: DaemonFixture):
    """A user's own daemon cannot move processes into root's groups: it returns an error and starts
    nothing."""
    for_all(fixture)
    alice = User(fixture, ALICE)
    alice.env["STASIS_SOCKET"] = str(alice.home / "socket")
    alice.stasis("daemon", "start")
    words = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", "--", fixture.build / "bin" / "stasis",
             "restore", "absent"]
    with Group("memory") as group:
        fixture.world.shell(group.command(words), expect=4, env=alice.env)
    demand("control group" in fixture.world.last.err and "--no-daemon" in fixture.world.last.err, f"{fixture.world.last}")
    alice.stasis("daemon", "drain")
    leave(fixture)


if __name__ == "__main__":
    try:
        for wanted in ("memory", None):
            with Group(wanted):
                pass
    except isolate.Unable as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(isolate.SKIPPED)
    sys.exit(main([restored, started_by_a_program, refused_where_it_cannot_be]))
