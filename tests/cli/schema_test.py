#!/usr/bin/env python3
"""The --json output of every command matches docs/schema/: a field that is not described, or
described and missing, is an error."""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
import schemas  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

# Schemas that belong to no command: shared parts, errors, and a command of another tool.
NO_VERB = {"operation", "checkpoint", "error", "plugin", "transfer", "migration", "bench-remote", "bench-restore",
           "gpu-report"}
# Commands that show a program's output or a text, and have no document.
NO_DOCUMENT = {"attach", "arena-ready", "help", "receive"}
# bench.verb, bench.remote and bench.restore compare the schemas of bench, which takes long, migration.moves that of
# migrate, and cli.gpu_report that of the conformance checks.
NOT_RUN = {"operation", "checkpoint", "transfer", "migration", "bench", "bench-remote", "bench-restore",
           "migrate", "gpu-report"}


def every_field_says_what_it_is(name, schema, at=""):
    if schema.get("type") == "object" and "properties" in schema:
        demand(schema.get("additionalProperties") is False, f"{name}{at} takes any field")
        for field, inner in schema["properties"].items():
            demand(inner.get("description"), f"{name}{at}.{field} is not described")
            every_field_says_what_it_is(name, inner, f"{at}.{field}")
    for inner in schema.get("definitions", {}).values():
        every_field_says_what_it_is(name, inner, at)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            every_field_says_what_it_is(name, schema[key], f"{at}[]")
    for key in ("oneOf", "anyOf"):
        for inner in schema.get(key, []):
            every_field_says_what_it_is(name, inner, at)


class Walk:
    """Runs commands, compares their output, and records the schemas used."""

    def __init__(self, world):
        self.world = world
        self.seen = set()

    def check(self, name, document):
        schemas.compare(name, document)
        self.seen.add(name)

    def __call__(self, name, *words, expect=0, **more):
        """Runs the command NAME with more words; `image-ls` means `image ls`."""
        inner = name.split("-")[0] in ("image", "arena", "gpu", "config", "daemon", "container", "cdi", "key", "repo",
                                       "share", "slurm")
        document = self.world.stasis("--json", *name.split("-", 1 if inner else 0), *words, expect=expect, **more).json()
        self.check("error" if "error" in document else name, document)
        return document


def verbs(world, path=()):
    text = world.stasis(*path, "--help").out
    if "Subcommands:" not in text:
        return {"-".join(path)}
    own = {"share"} & {"-".join(path)}  # also a command by itself
    inner = re.findall(r"^  ([a-z-]+)[, ]", text.split("Subcommands:")[1], re.M)
    return own.union(*(verbs(world, (*path, verb)) for verb in inner))


def start(world, run, job):
    document = run("run", "--job", job, "--", str(world.workloads / "vector"), "--memory", "8M", "--interval", "10")
    log = pathlib.Path(document["log"])
    wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, f"{job} is not ready")
    return document["pid"]


def adopted(world, run):
    """A process without a job, log or shim."""
    child = subprocess.Popen([world.workloads / "vector", "--memory", "8M", "--interval", "10"], env=world.env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    world.own(child.pid)
    run("manage", child.pid, "--job", "found")
    demand(run("inspect", "found")["processes"]["shim"] is None, "it has a shim")
    demand([job["log"] for job in run("ps")["jobs"] if job["id"] == "found"] == [None], "it has a log")
    run("logs", "found", expect=7)
    run("kill", "found", "-s", "KILL")
    child.wait()
    world.disown(child.pid)
    run("wait", "found", expect=1)
    run("delete", "found")


def containers(world, run):
    plugins = world.folder / "plugins"
    plugins.mkdir()
    (plugins / "stasis_plugin.so").touch()
    paths = ("--criu-config", world.folder / "criu.conf", "--cdi-dir", world.folder / "cdi", "--plugin-dir", plugins)
    run("ps", "--containers", "-a")
    run("container-check", *paths, expect=5)
    run("container-setup", *paths, expect=(0, 5))
    run("cdi-install", "--dir", world.folder / "cdi")
    run("container-remove", *paths)
    run("suspend", "podman:nobody", expect=(3, 5))


def walk(world, run):
    for name in ("version", "ps", "image-ls", "image-gc", "arena-ls", "arena-free", "gpu-ls", "config-show", "recover"):
        run(name)  # while there is nothing
    run("config-show", env={"STASIS_HELPER_IDLE_S": "7"})
    run("check", expect=(0, 5))
    run("completion", "bash")
    run("slurm-check", expect=(0, 5))
    run("slurm-config")
    run("slurm-epilog", env={"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()),
                             "SPANK_STASIS_STATE_DIR": str(world.state)})
    run.check("plugin", world.stasis("plugin", "install", "--json").json())
    containers(world, run)
    run("key-show", expect=3)
    run("key-create")
    run("key-join")
    run("key-show")
    (world.folder / "remote").mkdir()
    run("repo-add", "fleet", world.folder / "remote")
    run("repo-ls")
    run("repo-check", "fleet")
    run("arena-reserve", "16MiB")
    pid = start(world, run, "v")
    run("check", "v", expect=(0, 5))
    run("gpu-ls")
    run("gpu-restore-tid", pid)
    for step in ("lock", "checkpoint", "restore", "unlock", "toggle", "toggle", "state"):
        run(f"gpu-{step}", pid)
    run("suspend", "v", "--dry-run")
    run("inspect", "v")
    run("checkpoints", "v")
    run("suspend", "v", "--keep-context")
    run("gpu-state", pid)
    run("arena-ls")
    run("ps")
    run("suspend", "v")
    run("suspend", "v")  # with nothing to do
    run("ps")
    run("arena-ls")
    run("resume", "v")
    run("dump", "v", "--leave-running", "--name", "one", "--compress", "zstd")
    run("dump", "v", "--name", "two")
    run("ps", "-a")
    run("inspect", "v")
    run("checkpoints", "v")
    run("wait", "v", expect=75)
    for name in ("image-inspect", "image-verify"):
        run(name, "two")
    run("image-push", "two", "-R", "fleet")
    for name in ("image-inspect", "image-verify"):
        run(name, "two", "-R", "fleet")
    run("image-pull", "two", "-R", "fleet", "--name", "three")
    run("image-verify", "three")
    run("image-ls", "-R", "fleet")
    run("image-gc", "-R", "fleet")
    run("repo-remove", "fleet")
    run("image-ls")
    run("restore", "v")
    run("logs", "v")
    adopted(world, run)
    daemon(world, run, "v")
    run("kill", "v", "-s", "KILL")
    run("wait", "v", expect=137)
    run("ps", "-a")
    run("delete", "v")
    with open(world.images / "one" / "manifest.pb", "r+b") as manifest:
        manifest.truncate(40)
    run("image-ls")
    run("image-delete", "two")
    # Errors of several layers.
    run("suspend", "nobody", expect=3)
    run("suspend", "--tcp", expect=2)
    run("attach", "v", expect=2)
    run("image-inspect", "one", expect=1)


def shares(world, run):
    run("run", "--share", "--job", "shared", "--", str(world.workloads / "vector"), "--memory", "8M", "--interval", "10")
    wait_until(lambda: run("share")["shares"], 60, "the daemon does not know it")
    run("share-pin", "shared")
    run("share-unpin", "shared")
    run("ps")
    run("inspect", "shared")
    run("kill", "shared", "-s", "KILL")
    run("wait", "shared", expect=137)
    run("delete", "shared")


def daemon(world, run, job):
    run("daemon-start", env={"STASIS_FAULT": "gpu-lock:before:hang"})
    slow = world.begin("suspend", job, "--timeout", "4")
    world.await_phase("gpu-lock")
    run("daemon-status")
    demand(slow.wait().code == 1, str(slow))
    shares(world, run)
    run("daemon-drain")
    wait_until(lambda: world.reap() or not world.daemons(), 60, "the daemon does not end")


def every_verb(world):
    if not schemas.is_able():
        print("skipped: there is no python3-jsonschema")
        sys.exit(77)
    known = schemas.load()
    for name, schema in known.items():
        every_field_says_what_it_is(name, schema)
    described, there = set(known) - NO_VERB, verbs(world) - NO_DOCUMENT
    demand(described == there, f"without a schema: {there - described}; without a verb: {described - there}")
    run = Walk(world)
    walk(world, run)
    unseen = set(known) - run.seen - NOT_RUN
    demand(not unseen, f"nothing was compared with {unseen}")


if __name__ == "__main__":
    sys.exit(one_world.main(every_verb))
