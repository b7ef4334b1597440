#!/usr/bin/env python3
"""A second user can do nothing to the first user's files and programs."""
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys

import users  # adds tests/stage to the path
import isolate
import processes
from users import ALICE, BOB, RESTORER, Program, demand

WITH_TRACING = ("checkpoint_restore", "sys_ptrace")


def spawn(world, *words):
    """Starts a program of this user without a job; it prints READY."""
    path = world.folder / f"by-hand-{len(world.log)}.out"
    with open(path, "wb") as out:
        child = subprocess.Popen([*world.user_words(), *map(str, words)], env=world.env, cwd=world.folder,
                                 stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    processes.wait_until(lambda: "READY" in path.read_text(), 60, "it does not start")
    world.own(child.pid)
    return child


def end(world, child):
    for pid in processes.tree(child.pid):
        processes.end(pid)
    child.wait()
    world.disown(child.pid)


def another_users_program(new):
    """A user cannot use another user's program, even with the capability to trace all processes."""
    alice, bob = new(ALICE, RESTORER), new(BOB, WITH_TRACING)
    program = Program(alice, "job", "counter", ["--memory", "1M"]).run()
    for words in (["dump", program.pid], ["suspend", program.pid], ["suspend", "--keep-context", program.pid], ["manage", program.pid]):
        refused = bob.stasis(*words, expect=4)
        demand("belongs to user 4001, you are user 4002" in refused.err, refused)
    for words in (["gpu", "lock", program.pid], ["gpu", "checkpoint", program.pid]):
        bob.stasis(*words, expect=4)
    demand(bob.stasis("ps", "-a", "--json").json()["jobs"] == [], "Bob sees Alice's job")
    program.expect_running()
    program.finish()


def name_that_speaks_to_the_terminal(new):
    """Any user can choose a program's name, and root reads it."""
    alice = new(ALICE)
    name = "\x1b[2J\x07x"
    shutil.copy("/bin/sh", alice.folder / name)
    os.chmod(alice.folder, 0o755)
    child = spawn(alice, alice.folder / name, "-c", "echo READY; kill -STOP $$; :")
    refused = new(BOB, RESTORER).stasis("dump", child.pid, expect=4)
    demand("(?[2J?x) belongs to user 4001" in refused.err and "\x1b" not in refused.err, repr(refused.err))
    end(alice, child)


def tree_with_more_rights(new):
    """A child that runs a set-id program, has its own group, a capability, or a user namespace."""
    alice = new(ALICE, WITH_TRACING)
    place = alice.folder / "set-id"
    place.mkdir()
    isolate.mount("tmpfs", str(place), "tmpfs", 0, "mode=0755")  # /tmp here does not allow set-id
    alice._mounts.append(str(place))
    for name, mode, uid, gid in (("setuid", 0o4755, 0, 0), ("setgid", 0o2755, 0, BOB), ("unreadable", 0o711, 0, 0)):
        shutil.copy("/bin/sleep", place / name)
        os.chown(place / name, uid, gid)
        os.chmod(place / name, mode)
    shutil.copy("/bin/sleep", place / "capable")
    # VFS_CAP_REVISION_2 with the effective bit; CAP_NET_RAW is bit 13.
    os.setxattr(place / "capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    cases = (("setuid 1000", "belongs to user 0"), ("setgid 1000", f"has group {BOB}"),
             ("capable 1000", "has capabilities"), ("unreadable 1000", "may not be inspected"),
             ("/usr/bin/unshare -U sleep 1000", "user namespace"))
    for text, words in cases:
        command = text if text.startswith("/") else f"{place}/{text}"
        child = spawn(alice, "/bin/sh", "-c", f"{command} & echo READY; wait")
        name = "sleep" if text.startswith("/") else text.split()[0]
        processes.wait_until(lambda: processes.named(name, child.pid), 60, "no such child")
        refused = alice.stasis("dump", child.pid, "--name", "x", expect=4)
        demand(words in refused.err, lambda: f"the message lacks '{words}':\n{refused}")
        demand(not alice.images.is_dir() or not list(alice.images.iterdir()), "something was written")
        end(alice, child)
    isolate.unmount(str(place))


def tree_that_gets_more_rights(new):
    """A child gets more rights between the survey and the closing of gates: the suspend is rolled back."""
    alice = new(ALICE, RESTORER)
    place = alice.folder / "set-id"
    place.mkdir()
    isolate.mount("tmpfs", str(place), "tmpfs", 0, "mode=0755")
    alice._mounts.append(str(place))
    shutil.copy("/bin/sleep", place / "setuid")
    os.chmod(place / "setuid", 0o4755)
    go = alice.folder / "go"
    os.mkfifo(go)
    os.chown(go, ALICE, ALICE)
    log = alice.folder / "job.log"
    alice.stasis("gpu", "ls")  # starts softgpu's broker outside of any program
    alice.stasis("run", "--json", "--job", "job", "--log", log, "--", "/bin/sh", "-c",
                 f"(read word < {go}; exec {place}/setuid 1000) & exec {alice.workloads}/counter --memory 1M")
    pid = alice.last.json()["pid"]
    processes.wait_until(lambda: "READY" in log.read_text(), 60, "it does not start")
    # Once the survey is in the journal the command is held until the child belongs to another user.
    hold = alice.folder / "hold"
    hold.touch()
    command = alice.begin("suspend", "job", env={"STASIS_FAULT": f"gate-close:before:hold={hold}"})
    alice.await_phase("gate-close")
    go.write_text("\n")
    processes.wait_until(lambda: processes.named("setuid", pid), 60, "no child is set-id")
    hold.unlink()
    command.wait()
    demand(command.code == 4 and "belongs to user 0" in command.err and "tree-check" in command.err, command)
    demand(alice.stasis("gpu", "state", pid, "--json").json()["state"] == "running", "it was not undone")
    for process in processes.tree(pid):
        processes.end(process)
    alice.stasis("wait", "job", expect=None)
    isolate.unmount(str(place))


def owner(pid):
    """Returns the user id of the process, or None if the process has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def files_of_a_user(new):
    """All of the user's files are private: checks modes, and tries as a second user."""
    alice = new(ALICE, RESTORER)
    alice.env["STASIS_HELPER_IDLE_S"] = "60"
    os.chmod(alice.folder, 0o755)  # must not be the protection
    program = Program(alice, "job", "counter", ["--memory", "4M"]).run()
    alice.stasis("dump", "job", "--name", "image", "--leave-running")
    alice.stasis("suspend", "job")
    arenas = pathlib.Path(f"/dev/shm/stasis-{ALICE}")
    seen = []
    for top in (alice.state, arenas):
        for path in [top, *top.rglob("*")]:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                continue
            demand(path.lstat().st_uid == ALICE, f"{path} is not Alice's")
            program_file = "agents" in path.parts or path in (alice.state, alice.state / "data")
            allowed = 0o055 if program_file else 0
            open_above = any(p.lstat().st_mode & 0o077 == 0 for p in path.parents if p != alice.folder
                             and top in (p, *p.parents))
            demand(mode & 0o077 & ~allowed == 0 or open_above, f"{path} has mode {mode & 0o7777:04o}")
            if not program_file:
                seen.append(path)
    kinds = "\n".join(map(str, seen))
    for part in (".data", "manifest.pb", "jobs", "helpers/", "/journal", "/cpu/", "/packs/"):
        demand(part in kinds, f"no {part} was looked at in:\n{kinds}")
    for path in seen:
        if path.is_dir():
            word = users.as_user(BOB, lambda: os.listdir(path))
        else:
            word = users.as_user(BOB, lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
        demand(word in ("PermissionError", "OSError"), f"Bob opens {path} ({word})")
    demand(users.as_user(BOB, lambda: os.listdir(alice.images)) == "PermissionError", "Bob lists Alice's images")
    # Alice's processes do not admit Bob either: the mover with her data, the shim, the program.
    for pid in processes.all_pids():
        if pid != os.getpid() and owner(pid) == ALICE:
            word = users.as_user(BOB, lambda: os.listdir(f"/proc/{pid}/fd"))
            demand(word == "PermissionError" or not processes.is_alive(pid), f"Bob looks into {processes.describe(pid)}")
    alice.stasis("resume", "job")
    program.expect_running()
    program.finish()
    alice.stasis("arena", "free")


def folders_of_another(new):
    """-d, --spill, --log and --pid-file in directories controlled by another user."""
    root, alice, bob = new(), new(ALICE, RESTORER), new(BOB)
    for world in (root, alice, bob):
        os.chmod(world.folder, 0o755)
    program = Program(alice, "job", "counter", ["--memory", "1M"]).run()
    for words in (["dump", "job", "-d", bob.folder / "store"], ["suspend", "job", "--spill", bob.folder]):
        alice.stasis(*words, expect=4)
        program.expect_running()
    program.finish()
    # Root follows no link of Bob's, and stores no GPU data where Bob could replace it.
    target = root.folder / "target"
    target.mkdir()
    (root.folder / "victim").write_text("root's\n")
    os.symlink(target, bob.folder / "link")
    os.symlink(root.folder / "victim", bob.folder / "link.log")
    os.link(root.folder / "victim", bob.folder / "hard.log")
    for name in ("link", "link.log"):
        os.chown(bob.folder / name, BOB, BOB, follow_symlinks=False)
    for log in (bob.folder / "link.log", bob.folder / "link" / "log", bob.folder / "hard.log"):
        refused = root.stasis("run", "--log", log, "--", "/bin/true", expect=4)
        demand(str(log) in refused.err, refused)
    demand((root.folder / "victim").read_text() == "root's\n", "the victim was written to")
    program = Program(root, "job", "counter", ["--memory", "1M"]).run()
    root.stasis("dump", "job", "-d", bob.folder / "link" / "store", expect=4)
    root.stasis("suspend", "job", "--spill", bob.folder, expect=4)
    demand(not list(target.iterdir()), f"behind the link: {list(target.iterdir())}")
    program.expect_running()
    # Bob's directory, but root's image
    root.stasis("dump", "job", "-d", bob.folder / "images", "--name", "x")
    program.await_gone()
    image = bob.folder / "images" / "x"
    demand(users.as_user(BOB, lambda: os.listdir(image)) == "PermissionError", "Bob reads root's image")
    root.stasis("restore", image, "--job", "job", "--pid-file", bob.folder / "link" / "pid")
    demand("--pid-file was not written" in root.last.out, root.last)
    demand(not list(target.iterdir()), f"behind the link: {list(target.iterdir())}")
    program.find_pid()
    program.finish()


def run_folder_made_by_another(new):
    """Bob makes the folder for Alice's journals first, in a folder in which all users may make files (folders.run)."""
    root, alice, bob = new(), new(ALICE, RESTORER), new(BOB)
    shared = root.folder / "shared"
    os.chmod(root.folder, 0o755)
    shared.mkdir()
    os.chmod(shared, 0o1777)
    elsewhere = bob.folder / "elsewhere"
    os.chmod(bob.folder, 0o755)
    elsewhere.mkdir(mode=0o777)
    os.chmod(elsewhere, 0o777)
    place = shared / f"stasis-{ALICE}"
    env = {"STASIS_RUN_DIR": str(shared / "stasis-%u")}

    def expect_refused():
        for words in (["run", "--", "/bin/true"], ["ps"], ["recover"], ["arena", "free"]):
            refused = alice.stasis(*words, expect=4, env=env)
            demand(f"{place} belongs to user {BOB}" in refused.err and "STASIS_RUN_DIR" in refused.err, refused)
    for mode in (0o700, 0o777):
        users.as_user(BOB, lambda: os.mkdir(place) or os.chmod(place, mode))
        expect_refused()
        demand(not os.listdir(place), f"in Bob's folder: {os.listdir(place)}")
        os.rmdir(place)
    users.as_user(BOB, lambda: os.symlink(elsewhere, place))
    expect_refused()
    demand(not os.listdir(elsewhere), f"behind the link: {os.listdir(elsewhere)}")
    os.unlink(place)
    alice.stasis("run", "--job", "own", "--", "/bin/true", env=env)
    alice.stasis("wait", "own", env=env)
    alice.stasis("delete", "own", env=env)
    demand(place.stat().st_uid == ALICE and place.stat().st_mode & 0o777 == 0o700, f"{place.stat()}")
    root.stasis("ps")
    bob.stasis("ps")


def output_in_anothers_folder(new):
    """Root's program writes to a file in Bob's directory, and Bob replaces it by a link while the
    program is dumped."""
    root, bob = new(), new(BOB)
    for world in (root, bob):
        os.chmod(world.folder, 0o755)
    victim, out = root.folder / "victim", bob.folder / "out"
    victim.write_text("root's\n")
    with open(out, "ab") as file:
        child = subprocess.Popen([root.workloads / "vector", "--interval", "10"], env=root.env, stdin=subprocess.DEVNULL,
                                 stdout=file, stderr=file, start_new_session=True)
    root.own(child.pid)
    processes.wait_until(lambda: "READY" in out.read_text(), 60, "it does not start")
    root.stasis("dump", child.pid, "--name", "x")
    child.wait()
    root.disown(child.pid)
    os.unlink(out)
    os.symlink(victim, out)
    os.chown(out, BOB, BOB, follow_symlinks=False)
    refused = root.stasis("restore", "x", "--job", "job", expect=4)
    demand(f"{out} leads through a symbolic link of user {BOB}" in refused.err, refused)
    demand(victim.read_text() == "root's\n", "the victim was written to")
    os.unlink(out)
    root.stasis("restore", "x", "--job", "job")
    root.stasis("kill", "-s", "KILL", "job")
    root.stasis("wait", "job", expect=137)


def programs_that_a_caller_names(new):
    """A stasis binary with capabilities uses only the CRIU and the limits of the machine's configuration."""
    alice = new(ALICE)
    place = alice.folder / "capable"
    place.mkdir()
    isolate.mount("tmpfs", str(place), "tmpfs", 0, "mode=0755")
    alice._mounts.append(str(place))
    shutil.copy(alice.bin / "stasis", place / "stasis")
    settings = {"STASIS_CRIU": "/home/alice/criu", "STASIS_CUDA_LIBRARY": "/home/alice/libcuda.so.1",
                "STASIS_LIMIT_JOBS": "1000"}
    keys = {"programs.criu", "programs.cuda_library", "limits.jobs"}

    def decided():
        command = alice.begin("config", "show", "--json", program=place / "stasis", env=settings).wait()
        return {row["key"]: row["from"] for row in command.json()["settings"] if row["key"] in keys}
    demand(set(decided().values()) == {"environment"}, f"without rights: {decided()}")
    # CAP_CHECKPOINT_RESTORE is bit 40: the second word.
    os.setxattr(place / "stasis", "security.capability", struct.pack("<5I", 0x02000001, 0, 0, 1 << 8, 0))
    demand(set(decided().values()) == {"default"}, f"with rights: {decided()}")
    isolate.unmount(str(place))


def limits_of_a_user(new):
    alice = new(ALICE, RESTORER)
    program = Program(alice, "job", "counter", ["--memory", "4M"]).run()
    refused = alice.stasis("run", "--", "/bin/true", expect=1, env={"STASIS_LIMIT_JOBS": "1"})
    demand("you have 1 jobs, and the limit is 1 (limits.jobs)" in refused.err and "stasis delete" in refused.err, refused)
    refused = alice.stasis("suspend", "job", expect=1, env={"STASIS_LIMIT_ARENA": "1MiB"})
    demand("your limit is 1 MiB (limits.arena)" in refused.err and "arena free" in refused.err, refused)
    program.expect_running()
    refused = alice.stasis("arena", "reserve", "64M", expect=1, env={"STASIS_LIMIT_ARENA": "32MiB"})
    demand("(limits.arena)" in refused.err, refused)
    # Detected after everything was written, and at the next dump.
    refused = alice.stasis("dump", "job", expect=1, env={"STASIS_LIMIT_IMAGES": "1MiB"})
    demand("the limit is 1 MiB (limits.images)" in refused.err and "image delete" in refused.err, refused)
    program.expect_running()
    demand(not list(alice.images.iterdir()), "the refused image is there")
    alice.stasis("dump", "job", "--leave-running", env={"STASIS_LIMIT_IMAGES": "1GiB"})
    refused = alice.stasis("dump", "job", "--name", "next", "--dry-run", expect=1, env={"STASIS_LIMIT_IMAGES": "1MiB"})
    demand("(limits.images)" in refused.err, refused)
    program.expect_running()
    program.finish()


if __name__ == "__main__":
    sys.exit(users.main(another_users_program, name_that_speaks_to_the_terminal, tree_with_more_rights,
                        tree_that_gets_more_rights, files_of_a_user, folders_of_another, run_folder_made_by_another, output_in_anothers_folder,
                        programs_that_a_caller_names, limits_of_a_user))
