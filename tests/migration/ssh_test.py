#!/usr/bin/env python3
"""Tests what a user sees when ssh or the other host's login fails, and a key that is limited to migrations.

The job continues on the source in all cases of failure.
"""

import shlex
import sys

from hosts import HERE, clear, expect_no_rest, expect_only, run_test, start
from world import demand

REMOTE = "STASIS_MIGRATE_REMOTE_COMMAND"


def refuse(a, *texts, host="b", options="", env=None):
    """Migrates with these options of ssh; requires that it fails with these texts."""
    more = {"STASIS_MIGRATE_SSH": f"{a.world.network.command} {options}", **(env or {})}
    done = a("migrate", "job", host, env=more, expect=None)
    demand(done.code in (1, 6, 7), f"{done}")
    for text in texts:
        demand(text in done.err, f"the message lacks {text}: {done}")
    demand(a.runs("job"), f"it does not run: {done}")


def login_fails(a):
    refuse(a, "Could not resolve hostname nowhere", "ssh to nowhere exited with code 255", host="nowhere")
    refuse(a, "Connection refused", "ssh to b exited with code 255", options="-p 23")
    refuse(a, "Host key verification failed", options="-o UserKnownHostsFile=none")
    refuse(a, "Permission denied (publickey,password", options="-o PubkeyAuthentication=no")
    # No connection at all.
    a.server.cut()
    refuse(a, "ssh to b exited with code 255", options="-o ConnectTimeout=1")
    a.server.mend()


def other_answers(a, b):
    refuse(a, "Install Stasis on b", env={REMOTE: "no-such-stasis receive"})
    refuse(a, "hello", env={REMOTE: "echo hello"})
    # A login shell that prints.
    profile = b.server.home / ".bashrc"
    profile.write_text("echo Welcome to b\n")
    refuse(a, "Welcome to b")
    profile.unlink()
    other = shlex.join([sys.executable, "-B", str(HERE / "other_version.py")])
    refuse(a, "this host has Stasis", "and a has", "install the same version on both hosts", env={REMOTE: other})


def restricted_key(a, b):
    """`stasis receive` is started, whatever command the client asks for."""
    key = f"{a.world.network.command} -o IdentityFile={a.world.network.folder}/restricted"
    a("migrate", "job", "b", "--rounds", "1", env={"STASIS_MIGRATE_SSH": key, REMOTE: f"touch {b.folder}/ran"})
    demand(not (b.folder / "ran").exists(), "the key ran another command")
    expect_only(b, a)
    expect_no_rest(a, b)


def run(world, a, b):
    start(a)
    login_fails(a)
    other_answers(a, b)
    expect_only(a, b)
    expect_no_rest(a, b)
    restricted_key(a, b)
    clear(a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
