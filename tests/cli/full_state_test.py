#!/usr/bin/env python3
"""`stasis run` when the disk with Stasis's own state is full: it starts nothing, gives the reason, leaves nothing
behind, and works again as soon as there is space."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import one_world  # noqa: E402
import processes  # noqa: E402
from world import demand  # noqa: E402

SIZE = 32 << 20


PAGE = 4096


def fill(folder, left_pages=0):
    with open(folder / "filler", "wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError:
            pass
    space = os.statvfs(folder)
    demand(space.f_bavail == 0, f"{space.f_bavail} blocks are free")
    os.truncate(folder / "filler", (folder / "filler").stat().st_size - left_pages * PAGE)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "filler")


def refused(world, state, env, left_pages=0):
    """Checks that `run` is refused while only `left_pages` pages are free. Returns False if these were enough."""
    fill(state, left_pages)
    before = names(state)
    command = world.stasis("run", "--job", "late", "--", "sleep", "1000", env=env, expect=None)
    if command.code == 0 and left_pages > 0:
        (state / "filler").unlink()
        world.stasis("kill", "late", env=env)
        world.stasis("wait", "late", env=env, expect=None)
        world.stasis("delete", "late", env=env)
        return False
    demand(command.code not in (0, 6), f"exit code {command.code}:\n{command}")
    demand("no space left" in command.err.lower() and str(state) in command.err, f"it does not say why:\n{command}")
    left = [p for name in ("sleep", "stasis-shim") for p in processes.called(name) if processes.is_alive(p)]
    demand(not left, f"it has started something: {left}")
    new = [name for name in names(state) if name not in before and "late" in name]
    demand(not new, f"left of it: {new}")
    (state / "filler").unlink()
    shown = world.stasis("ps", "-a", "--json", env=env).json()["jobs"]
    demand("late" not in [job["id"] for job in shown], f"there is a job:\n{world.last}")
    return True


def run(world):
    state = world.folder / "small"
    state.mkdir()
    isolate.mount("tmpfs", str(state), "tmpfs", 0, f"size={SIZE},mode=0755")
    world._mounts.append(str(state))
    env = {"STASIS_STATE_DIR": str(state)}
    try:
        refused(world, state, env)  # the first command with this state directory
        world.stasis("run", "--job", "first", "--", "true", env=env)
        world.stasis("wait", "first", env=env, expect=None)
        # The agent's library and the database now exist.
        pages = 0
        while refused(world, state, env, pages):
            pages += 1
        demand(1 < pages < 100, f"with {pages} pages left it succeeded")
        world.stasis("run", "--job", "late", "--", "true", env=env)
        world.stasis("wait", "late", env=env)
    finally:
        isolate.unmount(str(state))
        world._mounts.remove(str(state))
        state.rmdir()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
