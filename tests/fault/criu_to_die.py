"""A CRIU that is killed at a place (dying_criu.c)."""

import os


def dying_criu(world, name, **when):
    """What a command's environment needs for it; `when`: after, when, says, injects, together."""
    criu = os.environ.get("STASIS_CRIU") or world.build / "libexec" / "criu"
    words = " ".join(f"'DYING_CRIU_{key.upper()}={value}'" for key, value in when.items())
    path = world.folder / f"criu-{name}"
    path.write_text(f"#!/bin/sh\nexec env LD_PRELOAD={world.build}/tests/libdying_criu.so {words} {criu} \"$@\"\n")
    path.chmod(0o755)
    return {"STASIS_CRIU": str(path)}


def dying_behind_commit(world, name, after, **more):
    """At the dump with this image, when it has ended so many processes."""
    return dying_criu(world, name, after=after, when=f"{world.images}/{name}/manifest.pb", **more)
