#!/usr/bin/env python3
"""An unprivileged user with own jobs."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import users
import isolate
import nftables
from processes import wait_until
from users import ALICE, RESTORER, Program, demand


def status(pid, key):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1:] for line in file if line.startswith(key + ":"))


def demand_no_rights(pid):
    for key in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        demand(int(status(pid, key)[0], 16) == 0, f"{key} of process {pid}: {status(pid, key)}")
    demand(set(status(pid, "Uid") + status(pid, "Gid")) == {str(ALICE)}, f"who process {pid} is")


def user_dumps_and_restores_his_job(new):
    """With CAP_CHECKPOINT_RESTORE only; neither the job nor its shim gets it."""
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
    """The user has no capability; the worker has the one for CRIU."""
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


def user_keeps_connections(new):
    """With CAP_NET_ADMIN too, and only then; neither the job nor its shim gets it."""
    world = new(ALICE, (*RESTORER, "net_admin"))
    script = world.folder / "tcp_pair.py"
    shutil.copy(pathlib.Path(__file__).resolve().parents[1] / "stage" / "tcp_pair.py", script)
    world.stasis("run", "--job", "pair", "--", sys.executable, "-B", script)

    def send(word):
        port = wait_until(lambda: re.search(r"^PORT (\d+)$", world.stasis("logs", "pair").out, re.M), 60, "no port")[1]
        done = subprocess.run([world.workloads / "udp_send", "--timeout", "60000", port, word], text=True,
                              capture_output=True, check=False)
        return done.stdout.strip()

    def expect(count):
        demand(send("next") == str(count) and send("verify").startswith("OK "), world.stasis("logs", "pair").out)
        pids = world.named("tcp-pair")
        demand(len(pids) == 2, f"its processes: {pids}")
        for pid in (*pids, *world.named("stasis-shim")):
            demand_no_rights(pid)

    expect(101)
    world.capabilities = RESTORER
    refused = world.stasis("dump", "--tcp", "keep", "pair", expect=4)
    demand("CAP_NET_ADMIN" in refused.err and "security.md" in refused.err, refused)
    expect(102)
    world.capabilities = (*RESTORER, "net_admin")
    world.stasis("dump", "--tcp", "keep", "pair")
    demand(not nftables.criu_tables(), f"left after the dump: {nftables.criu_tables()}")
    world.capabilities = RESTORER
    demand("CAP_NET_ADMIN" in world.stasis("restore", "pair", expect=4).err, world.last)
    world.capabilities = (*RESTORER, "net_admin")
    world.stasis("restore", "pair")
    expect(103)
    demand(not nftables.criu_tables(), f"left after the restore: {nftables.criu_tables()}")
    demand(send("quit") == "BYE", "it does not end")
    world.stasis("wait", "pair")


def line_of_the_page(new):
    """Runs the command of docs/security.md as written there, except for the path of `stasis`."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
    line = re.search(r"^    (setpriv (?:.*\\\n)*.*)$", page, re.M)[1].replace("\\\n", " ")
    *prefix, program, verb, job = shlex.split(line)
    demand((program, verb, job) == ("stasis", "restore", "llama"), f"another line than expected: {program} {verb} {job}")
    world = new()
    world.folder.chmod(0o755)
    home = world.folder / "alice"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    for name, line in (("passwd", f"alice:x:{ALICE}:{ALICE}::{home}:/bin/sh\n"), ("group", f"alice:x:{ALICE}:\n")):
        (world.folder / name).write_text(pathlib.Path("/etc", name).read_text() + line)
        isolate.mount(str(world.folder / name), f"/etc/{name}", flags=isolate.MS_BIND)
    # Use root's environment: root's directory, and no variable that names another one.
    env = {name: value for name, value in world.env.items() if not name.startswith("STASIS_")}
    env["HOME"] = str(world.folder / "root")
    (world.folder / "root").mkdir(mode=0o700)

    def as_alice(*words, expect=0):
        done = subprocess.run([*prefix, world.bin / "stasis", *words], env=env, cwd="/", text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=90, check=False)
        demand(done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    as_alice("run", "--job", job, "--", "sleep", "1000")
    as_alice("dump", job)
    as_alice(verb, job)
    demand(f"{job} " in as_alice("ps"), "it is not restored")
    as_alice("kill", job)
    as_alice("wait", job, expect=143)
    for name in ("passwd", "group"):
        isolate.unmount(f"/etc/{name}")


def user_without_rights_suspends_his_job(new):
    """The error names the missing capability."""
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
    sys.exit(users.main(user_dumps_and_restores_his_job, user_dumps_through_roots_daemon, user_keeps_connections,
                        line_of_the_page, user_without_rights_suspends_his_job))
