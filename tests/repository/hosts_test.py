#!/usr/bin/env python3
"""Images move between two hosts through an S3 server: dump on one, restore on the other, and back.

STASIS_TEST_S3 names the server: `fake` (with faults) or `radosgw`. A host is a state folder of its own; both have a copy
of the master key.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "stage"), str(HERE.parent / "objects")]
import one_world  # noqa: E402
from programs import Program  # noqa: E402
from s3_server import BUCKET, Host, Server, add, says  # noqa: E402
from world import demand  # noqa: E402


def moves(world, server, a, b):
    """A program goes from host A to host B and back, and its memory is right each time."""
    a("key", "create")
    add(a, server, "fleet", "--trust")
    a("repo", "check", "fleet")
    shutil.copy(a.state / "data" / "stasis-key", world.folder / "key")
    (b.state / "data").mkdir(parents=True)
    shutil.copy(world.folder / "key", b.state / "data" / "stasis-key")
    add(b, server, "fleet", "--trust")
    for host in (a, b):
        host("key", "join")

    program = Program(world, "job", "counter", ["--memory", "64M"])
    program.run(env=a.env)
    program.expect_running()
    sent = []
    for turn, (source, target) in enumerate([(a, b), (b, a), (a, b)]):
        name = f"image{turn}"
        dump = source("dump", "job", "--name", name, "--to", "fleet", "--json").json()
        demand(dump["image"] == f"fleet/{name}", f"the image is {dump['image']}")
        demand(not source.image(name).exists(), "the local copy was not deleted")
        sent.append(dump["transfer"]["moved_bytes"])
        target("image", "verify", name, "-R", "fleet")
        target("restore", f"fleet/{name}", "--job", "job")
        program.expect_running()
        demand(not any((target.state / "data" / "images").iterdir()), "the restore left something")
    demand(sent[0] > 32 << 20, f"the first push sent {sent[0]} bytes only")
    demand(max(sent[1:]) < sent[0] // 4, f"later pushes sent {sent} bytes, though little had changed")

    # A job is restored from the copy of its latest image, since the image was deleted here.
    b("dump", "job", "--name", "final", "--to", "fleet")
    latest = b("checkpoints", "job", "--json").json()["checkpoints"][-1]
    demand(latest["copy"] == "fleet/final" and not latest["exists"], f"the checkpoint is {latest}")
    demand(b("checkpoints", "job").out.rstrip().endswith(" fleet/final"), "the copy is not shown")
    restored = b("restore", "job", "--json").json()
    demand(restored["image"] == "fleet/final", f"restored from {restored['image']}")
    program.expect_running()
    program.kill()
    b("wait", "job", expect=None)


def refusals(world, server, a, b):
    """Each refusal gives one clear message and leaves nothing here."""
    says(b("image", "pull", "none", "-R", "fleet", expect=3), "has no image none")
    says(add(b, server, "other", location="s3://bucket/a/prefix/packs", expect=1), "is not empty")
    says(add(b, server, "other", location="s3://nobucket/x", expect=3), "nobucket")
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    says(b("image", "ls", "-R", "fleet", expect=4, env=wrong), "signature")
    says(b("image", "ls", "-R", "fleet", expect=4, env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}),
         "credentials")
    b("key", "create", "--out", world.folder / "mine")
    says(b("image", "ls", "-R", "fleet", expect=4, env={"STASIS_KEY_FILE": str(world.folder / "mine")}), "master key")
    small = world.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", small], check=True)
    says(b("image", "pull", "image0", "-R", "fleet", "-d", small, expect=(1, 5, 8)), "space")
    demand(not list(small.iterdir()), f"a pull that failed left {list(small.iterdir())}")
    subprocess.run(["umount", small], check=True)
    says(b("image", "verify", "image0", "-R", "fleet", "--not-before", "2100-01-01", expect=1), "pushed before")


def faults(world, server, a, b):
    """A request that fails once is repeated; a wrong answer is refused."""
    store = world.folder / "store"  # an empty one, so that everything is fetched

    def pull(*rules, expect=0):
        server.faults(*rules)
        return b("image", "pull", "image0", "-R", "fleet", "-d", store, "--json", expect=expect)

    def fault(kind, method="GET", target="packs/", count=1, **more):
        return {"kind": kind, "method": method, "target": target, "count": count, **more}

    # libcurl itself repeats a request once on a connection that was used before.
    for rule in (fault("refuse", count=4), fault("cut", bytes=1000), fault("status", status=500, code="InternalError"),
                 fault("status", status=503, code="SlowDown"), fault("refuse", target="index/", count=4)):
        done = pull(rule).json()
        demand(done["retries"] >= 1, f"{rule} was not noticed")
        b("image", "verify", "image0", "-d", store)
        b("image", "delete", "image0", "-d", store)
    says(pull(fault("status", status=403, code="AccessDenied", count=99), expect=4), "packs/")
    server.faults()
    demand(not list(store.iterdir()), "half an image is here")

    # A push that is cut off leaves no image in the repository, and the program's image stays here.
    program = Program(world, "again", "counter", ["--memory", "16M"])
    program.run(env=a.env)
    server.faults(fault("status", method="PUT", target="packs/", status=403, code="AccessDenied", count=99))
    failed = a("dump", "again", "--name", "late", "--to", "fleet", expect=6)
    says(failed, "is complete on this machine, but was not copied", "stasis image push")
    server.faults()
    demand("late" not in a("image", "ls", "-R", "fleet").out, "the failed push is visible")
    a("image", "push", "late", "-R", "fleet")
    again = a("image", "push", "late", "-R", "fleet").out
    demand("had this image already" in again, f"a push that is repeated says: {again}")
    a("image", "verify", "fleet/late")
    a("image", "gc", "-R", "fleet")
    a("image", "verify", "late", "-R", "fleet")


def interrupted(world, server, b):
    """Ctrl-C ends a command whose server does not answer."""
    silent = socket.create_server(("127.0.0.1", 0))
    env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_REGION": "x"}
    for words in (("image", "ls"), ("image", "gc"), ("image", "pull", "x")):
        command = world.begin(*words, "-R", BUCKET, env={**b.env, **env})
        connection, _ = silent.accept()
        command.process.send_signal(signal.SIGINT)
        command.wait(20)
        demand(command.code == 1 and "cancelled" in command.err, f"{command}")
        connection.close()
    silent.close()


def run(world):
    server = Server(world, os.environ.get("STASIS_TEST_S3", "fake"))
    try:
        a, b = Host(world, "a", server), Host(world, "b", server)
        moves(world, server, a, b)
        refusals(world, server, a, b)
        if server.kind == "fake":
            interrupted(world, server, b)
            faults(world, server, a, b)
        for host in (a, b):
            demand(not [p.name for p in (host.state / "data" / "images").glob(".*")], "hidden folders are left")
            subprocess.run(["umount", host.state / "run" / "arena"], stderr=subprocess.DEVNULL, check=False)
    finally:
        server.end()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
