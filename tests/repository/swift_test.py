#!/usr/bin/env python3
"""Images in OpenStack Swift, through its S3 interface: push, ls, pull, verify, restore, delete and gc.

tools/swift.sh unpacks Swift.
"""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "stage"), str(HERE.parent / "objects")]
import one_world  # noqa: E402
from programs import Program  # noqa: E402
from s3_server import Host, Server, add, says  # noqa: E402
from world import demand  # noqa: E402

SWIFT = HERE.parents[1] / ".cache" / "swift"


def names(host):
    return [image["name"] for image in host("image", "ls", "-R", "fleet", "--json").json()["images"]]


def images(world, server, host):
    host("key", "create")
    add(host, server, "fleet", "--trust")
    host("repo", "check", "fleet")
    program = Program(world, "job", "counter", ["--memory", "160M"])
    program.run(env=host.env)
    host("dump", "job", "--leave-running", "--name", "one")
    program.expect_running()
    pushed = host("image", "push", "one", "-R", "fleet", "--json").json()
    demand(pushed["sent_bytes"] > 128 << 20, f"the push sent {pushed}")
    dumped = host("dump", "job", "--name", "two", "--to", "fleet", "--json").json()
    demand(dumped["transfer"]["known_bytes"] > 64 << 20, f"little was known: {dumped['transfer']}")
    demand(names(host) == ["one", "two"], f"the images are {names(host)}")
    host("image", "inspect", "fleet/one")
    for name in ("one", "two"):
        host("image", "verify", name, "-R", "fleet")
    host("restore", "fleet/two", "--job", "job")
    program.expect_running()

    store = world.folder / "store"
    host("image", "pull", "one", "-R", "fleet", "-d", store)
    host("image", "verify", "one", "-d", store)
    host("image", "delete", "two", "-R", "fleet")
    freed = host("image", "gc", "-R", "fleet", "--json").json()
    demand(freed["images"] == 1 and freed["packs"] >= 1, f"the gc: {freed}")
    host("image", "verify", "one", "-R", "fleet")
    host("image", "delete", "one", "-R", "fleet")
    host("image", "gc", "-R", "fleet")
    demand(server.keys() == ["a/prefix/repo"], f"left: {server.keys()}")
    program.kill()


def refusals(server, host):
    says(host("image", "pull", "none", "-R", "fleet", expect=3), "has no image none")
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    says(host("image", "ls", "-R", "fleet", expect=4, env=wrong), "signature")
    says(add(host, server, "other", location="s3://nobucket/x", expect=3), "nobucket")


def run(world):
    server = Server(world, "swift", SWIFT)
    try:
        host = Host(world, "a", server)
        images(world, server, host)
        refusals(server, host)
        subprocess.run(["umount", host.state / "run" / "arena"], stderr=subprocess.DEVNULL, check=False)
    finally:
        server.end()


if not SWIFT.is_dir():
    print(f"SKIPPED: {SWIFT} is missing; `./run test nightly` or tools/swift.sh unpacks it")
    sys.exit(77)
sys.exit(one_world.main(run))
