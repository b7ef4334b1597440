#!/usr/bin/env python3
"""A user who is not root, and his own job."""
import sys

import users
from users import ALICE, RESTORER, Program, demand


def status(pid, key):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1:] for line in file if line.startswith(key + ":"))


def demand_no_rights(pid):
    for key in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        demand(int(status(pid, key)[0], 16) == 0, f"{key} of process {pid}: {status(pid, key)}")
    demand(set(status(pid, "Uid") + status(pid, "Gid")) == {str(ALICE)}, f"who process {pid} is")


def user_dumps_and_restores_his_job(new):
    """With CAP_CHECKPOINT_RESTORE and no other right; neither the job nor its shim has that."""
    world = new(ALICE, RESTORER)
    world.stasis("check")
    program = Program(world, "job", "counter", ["--memory", "8M"]).run()
    demand_no_rights(program.pid)
    program.expect_running()
    for _ in range(2):
        world.stasis("suspend", "job")
        world.stasis("resume", "job")
        program.expect_running()
        program.dump()
        program.restore()
        program.expect_running()
        demand_no_rights(program.pid)
        parent = int(status(program.pid, "PPid")[0])
        demand_no_rights(parent)
    program.finish()


def user_dumps_through_roots_daemon(new):
    """He has no right of his own; the worker has CRIU's one."""
    root, world = new(), new(ALICE)
    root.folder.chmod(0o755)
    socket = {"STASIS_SOCKET": str(root.folder / "socket")}
    root.stasis("daemon", "start", env={**socket, "SOFTGPU_DIR": world.env["SOFTGPU_DIR"]})
    world.env.update(socket)
    program = Program(world, "job", "counter", ["--memory", "8M"]).run()
    demand_no_rights(program.pid)
    program.expect_running()
    program.dump()
    program.restore()
    program.expect_running()
    demand_no_rights(program.pid)
    demand_no_rights(int(status(program.pid, "PPid")[0]))
    program.finish()
    root.stasis("daemon", "drain", env=socket)
    del world.env["STASIS_SOCKET"]


def user_without_rights_suspends_his_job(new):
    """And is told what he may not."""
    world = new(ALICE)
    program = Program(world, "job", "counter", ["--memory", "8M"]).run()
    world.stasis("suspend", "job")
    world.stasis("resume", "job")
    program.expect_running()
    refused = world.stasis("dump", "job", expect=4)
    demand("CAP_CHECKPOINT_RESTORE is missing" in world.stasis("check", expect=None).out, world.last)
    demand("CAP_CHECKPOINT_RESTORE" in refused.err and "setpriv" in refused.err, refused)
    program.expect_running()
    program.finish()


if __name__ == "__main__":
    sys.exit(users.main(user_dumps_and_restores_his_job, user_dumps_through_roots_daemon,
                        user_without_rights_suspends_his_job))
