"""Measures `stasis bench --remote` against a radosgw of its own. Not a test: it needs a quiet machine.

usage: radosgw_bench.py --build build/release (in the environment: SIZE=256MiB ROUNDS=3 STORE=memory|disk)
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "stage"), str(HERE.parent / "objects")]

import one_world  # noqa: E402
from s3_server import BUCKET, Host, Server, add  # noqa: E402


def run(world):
    # Deleted objects stay for a while, and a full server answers nothing any more.
    os.environ.setdefault("MEMSTORE_BYTES", str(8 << 30))
    server = Server(world, "radosgw", os.environ.get("STORE", "memory"))
    try:
        host = Host(world, "a", server)
        host("key", "create")
        for name, options in (("encrypted", []), ("plain", ["--plain"])):
            add(host, server, name, *options, location=f"{BUCKET}/{name}")
            print(host("bench", "--remote", name, "--size", os.environ.get("SIZE", "256MiB"), "--rounds",
                       os.environ.get("ROUNDS", "3"), "-d", "/dev/shm", seconds=600).out, flush=True)
    finally:
        server.end()


sys.exit(one_world.main(run))
