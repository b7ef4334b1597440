"""Several restores of one image at the same time: they share what is on disk, need no copy of the GPU data in host
memory, and names that only one program can have are reported before anything is done (docs/guides/clones.md)."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import isolate  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

PROGRAM = pathlib.Path(__file__).resolve().parent / "names.py"
MIB = 1 << 20
MEMORY = 64 * MIB
CLONES = 4
PORT = 7711
BEFORE_CRIU = "cpu-restore:before:hold="  # everything was checked, and no name is taken yet


def clone(world, image, name, *options, **more):
    """Starts a restore, and returns the command."""
    return world.begin("restore", image, "--new-pidns", "--job", name, *options, **more)


def as_program(world, name, workload, args, log):
    """Returns a clone that runs."""
    program = Program(world, name, workload, args)
    program.is_job, program.files = True, [log]
    program.find_pid()
    return program


def end(world, program):
    program.finish()
    world.stasis("delete", program.name)


def on_disk(world):
    """Returns the size of the files in the store, each counted once."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512
             for path in world.images.rglob("*") if path.is_file() for s in [path.lstat()]}
    return sum(files.values())


def four_at_once(world):
    """Each clone has the right memory: it compares all of it in every round and at its end."""
    args = ["--memory", MEMORY, "--interval", 5]
    world.env["SOFTGPU_DRIVER_SOCKET"] = "1"
    original = Program(world, "server", "vector", args).run()
    original.dump(name="server")
    world.stasis("arena", "free")  # of the dump
    before = on_disk(world)
    logs = [world.folder / f"clone{i}.log" for i in range(CLONES)]
    commands = [clone(world, "server", f"clone{i}", "--json", "--log", log) for i, log in enumerate(logs)]
    for command in commands:
        demand(command.wait().code == 0, command)
        account = command.json()
        read, = (p["bytes"] for p in account["phases"] if p["name"] == "data-read")
        loaded, = (p["bytes"] for p in account["phases"] if p["name"] == "data-load")
        demand(read == 0 and loaded >= MEMORY, f"{read} bytes were copied to host memory, {loaded} loaded: {command}")
    arenas = world.stasis("arena", "ls", "--json").json()["arenas"]
    demand(not arenas, f"the clones have filled arenas: {arenas}")
    demand(on_disk(world) - before < MIB, f"the store has grown by {on_disk(world) - before} bytes")
    clones = [as_program(world, f"clone{i}", "vector", args, log) for i, log in enumerate(logs)]
    demand(len({program.number for program in clones}) == 1, "their pids are not those of the image")
    for program in clones:
        program.expect_running()
    for program in clones:
        end(world, program)
    world.stasis("delete", "server")
    world.stasis("image", "delete", "server")


def needs_a_name_of_its_own(world):
    original = Program(world, "server", "vector", ["--memory", MIB, "--interval", 5]).run()
    original.dump("--leave-running", name="server")
    world.stasis("restore", "server", "--new-pidns", expect=7)
    demand("use another name with --job" in world.last.err, world.last)
    original.expect_running()
    end(world, original)
    world.stasis("image", "delete", "server")


def name_of(world, kind):
    """Returns the name for the program, and how it appears in messages."""
    if kind in ("tcp", "tcp-shared"):
        return PORT, f"port 127.0.0.1:{PORT}"
    if kind == "udp":
        return PORT, f"UDP port 127.0.0.1:{PORT}"
    if kind == "abstract":
        return "stasis-test", "Unix socket @stasis-test"
    path = world.folder / kind
    if kind == "unix":
        path.unlink(missing_ok=True)
        return path, f"Unix socket {path}"
    path.write_bytes(bytes(4096))
    return path, f"file {path}"


def start(world, kind):
    name, said = name_of(world, kind)
    program = Program(world, "original", "/usr/bin/python3", [PROGRAM, kind, name]).run()
    program.dump("--leave-running", name="image")
    return program, said


def clean(world):
    world.stasis("delete", "original")
    world.stasis("image", "delete", "image")


def expect_refused(command, *patterns):
    demand(command.wait().code == 7, command)
    for pattern in patterns:
        demand(re.search(pattern, command.err), f"the message lacks '{pattern}': {command}")


def collides(world, kind):
    """With the program itself, with a restore that has not taken the name yet, and with a clone."""
    original, said = start(world, kind)
    command = clone(world, "image", "clone")
    expect_refused(command, re.escape(said), rf"in use by process {original.pid} \(python3\)", "docs/guides/clones.md")
    dry = clone(world, "image", "clone", "--dry-run")
    demand(dry.wait().code == 7, dry)
    original.expect_running()
    original.finish()

    hold = world.folder / "hold"
    hold.touch()
    log = world.folder / f"clone-{kind}.log"
    first = clone(world, "image", "clone", "--log", log, env={"STASIS_FAULT": f"{BEFORE_CRIU}{hold}"})
    world.await_phase("cpu-restore")
    expect_refused(clone(world, "image", "second"),
                   rf"another restore, process {first.pid}, is taking .*{re.escape(said)}")
    hold.unlink()
    demand(first.wait().code == 0, first)
    program = as_program(world, "clone", "/usr/bin/python3", [], log)
    expect_refused(clone(world, "image", "second"), rf"in use by process {program.pid} \(python3\)")
    program.expect_running()
    end(world, program)
    clean(world)


def may_be_shared(world, kind, *options):
    original, _ = start(world, kind)
    logs = [world.folder / f"{kind}{i}.log" for i in range(2)]
    commands = [clone(world, "image", f"clone{i}", "--log", log, *options) for i, log in enumerate(logs)]
    for command in commands:
        demand(command.wait().code == 0, command)
    for i, log in enumerate(logs):
        program = as_program(world, f"clone{i}", "/usr/bin/python3", [], log)
        program.expect_running()
        end(world, program)
    original.expect_running()
    original.finish()
    clean(world)


def has_its_own_port_in_a_network_namespace(world):
    original, _ = start(world, "tcp")
    log = world.folder / "clone-apart.log"
    apart = clone(world, "image", "clone", "--log", log, preexec_fn=isolate.enter_network)
    demand(apart.wait().code == 0, apart)
    program = as_program(world, "clone", "/usr/bin/python3", [], log)
    program.expect_running()
    end(world, program)
    original.expect_running()
    original.finish()
    clean(world)


CASES = [
    (four_at_once,),
    (needs_a_name_of_its_own,),
    *[(collides, kind) for kind in ("tcp", "udp", "unix", "abstract", "write", "map")],
    (has_its_own_port_in_a_network_namespace,),
    (may_be_shared, "tcp-shared"),
    (may_be_shared, "append"),
    (may_be_shared, "write", "--share-files"),
]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
