"""disk_full.py --build DIR [--all] disk: the disk becomes full while CPU memory is written, and exactly
at the commit.

A dump to a large store determines the size. Then the store is filled during a dump, after its check
of free space, to about that size, in steps of three pages, with --all of one page: each image is
intact or absent, and the program runs on.
"""

import os
import sys

from stand import Stand, demand, isolate, main

PAGE = 4096


def small_store(stand, size_bytes):
    store = stand.world.folder / "store-small"
    store.mkdir()
    isolate.mount("tmpfs", str(store), "tmpfs", 0, f"size={size_bytes},mode=0700")
    stand.world._mounts.append(str(store))
    stand.store = store
    return store


def give_back(stand, store):
    stand.store = None
    isolate.unmount(str(store))
    stand.world._mounts.remove(str(store))
    store.rmdir()


def fill(store, left_bytes):
    space = os.statvfs(store)
    fd = os.open(store / "filler", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fd, 0, space.f_bavail * space.f_frsize - left_bytes)
    os.close(fd)


def expect_refused(stand, store, command):
    demand(not stand.image_exists(), "there is an image")
    left = [name for name in os.listdir(store) if name != "filler"]
    demand(not left, f"left in the store: {left}")
    stand.world.expect_clean()
    stand.program.expect_running()


def filled_meanwhile(stand, left_bytes, whole, seen, options=("--leave-running",)):
    stand.prepare("running")
    store = small_store(stand, whole * 4)
    try:
        hold = stand.world.folder / "hold"
        hold.touch()
        operation = stand.begin("dump", *options, env={"STASIS_FAULT": f"gpu-lock:before:hold={hold}"})
        stand.world.await_phase("gpu-lock")
        fill(store, left_bytes)
        hold.unlink()
        command = operation.wait()
        demand(command.code in (0, 1), f"exit code {command.code}:\n{command}")
        if command.code == 0:
            stand.world.stasis("image", "verify", stand.image_folder())
            seen.setdefault("done", []).append(left_bytes)
            stand.world.expect_clean()
            stand.program.expect_running()
            return
        demand("No space left on device" in command.err or "the disk is full" in command.err,
               f"it does not say why:\n{command}")
        # The innermost phase in the message; cpu-dump encloses the commit.
        where = next((p for p in ("commit:", "cpu-write:", "cpu-dump:") if p in command.err), "elsewhere")
        seen.setdefault(where, []).append(left_bytes)
        expect_refused(stand, store, command)
    finally:
        give_back(stand, store)


def full_beforehand(stand, size_bytes):
    """Detected before anything is touched."""
    stand.prepare("running")
    store = small_store(stand, size_bytes)
    try:
        command = stand.operate("dump", "--leave-running")
        demand(command.code == 1, f"exit code {command.code}:\n{command}")
        demand("does not fit" in command.err and "-d" in command.err, f"no word of it:\n{command}")
        expect_refused(stand, store, command)
    finally:
        give_back(stand, store)


def disk_use(folder):
    pages = sum((path.lstat().st_size + PAGE - 1) // PAGE
                for path in folder.rglob("*") if path.is_file())
    return pages * PAGE


def run(stand: Stand, _):
    stand.prepare("running")
    stand.operate("dump", "--leave-running")
    whole = disk_use(stand.image_folder())
    seen = {}
    stand.case("room for next to nothing", full_beforehand, 1 << 20)
    for share in (0.02, 0.2, 0.9) if stand.every else (0.2, 0.9):
        stand.case(f"filled but for {share:.0%} of the image", filled_meanwhile,
                   int(whole * share) // PAGE * PAGE, whole, seen)
    # Here CRIU writes to the store.
    stand.case("filled but for 20% of the image, of a program that ends", filled_meanwhile,
               int(whole * 0.2) // PAGE * PAGE, whole, seen, [])
    for pages in range(-12, 7, 1 if stand.every else 3):
        stand.case(f"filled but for the image {pages:+} pages", filled_meanwhile,
                   whole + pages * PAGE, whole, seen)
    stand.case("room enough", filled_meanwhile, whole * 2, whole, seen)
    if not stand.failed and stand.cases > 3:
        print({where: f"{min(sizes)} to {max(sizes)} bytes" for where, sizes in seen.items()})
        demand("commit:" in seen, f"the commit never met a full disk: {seen}")
        demand("cpu-write:" in seen, f"CPU memory never met a full disk: {seen}")
        demand("done" in seen, "no dump succeeded")


if __name__ == "__main__":
    sys.exit(main(["disk"], run))
