"""A CRIU that is killed at a given point (dying_criu.c)."""

import os


def dying_criu(world, name, **when):
    """Returns the environment of a command with such a CRIU; `when`: after, when, says, injects, together."""
    criu = os.environ.get("STASIS_CRIU") or world.build / "libexec" / "criu"
    words = " ".join(f"'DYING_CRIU_{key.upper()}={value}'" for key, value in when.items())
    path = world.folder / f"criu-{name}"
    path.write_text(f"#!/bin/sh\nexec env LD_PRELOAD={world.build}/tests/libdying_criu.so {words} {criu} \"$@\"\n")
    path.chmod(0o755)
    return {"STASIS_CRIU": str(path)}


def dying_behind_commit(world, name, after, **more):
    """Kills CRIU in the dump of this image, after it has killed this many processes."""
    return dying_criu(world, name, after=after, when=f"{world.images}/{name}/manifest.pb", **more)
