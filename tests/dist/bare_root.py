"""Runs steps of a test in another root directory: one with glibc only, or a given folder."""

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable

# The path of the tree in the new root.
INSIDE = pathlib.Path("/some where/stasis")

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_ARM64 = platform.machine() == "aarch64"
_SYS_PIVOT_ROOT = 41 if _ARM64 else 155
_CLONE_NEWNS = 0x20000


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None)
    _check(result, f"mount {target}")


def glibc_files() -> list[pathlib.Path]:
    """Returns the loader and libraries of this machine's glibc, at the paths where programs look
    for them."""
    loader = pathlib.Path("/lib/ld-linux-aarch64.so.1" if _ARM64 else "/lib64/ld-linux-x86-64.so.2")
    listing = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    wanted = {f"lib{part}" for part in ("c.so.6", "m.so.6", "dl.so.2", "rt.so.1", "pthread.so.0")}
    libraries = []
    for line in listing.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] in wanted and ("AArch64" if _ARM64 else "x86-64") in name:
            libraries.append(pathlib.Path(path))
    return [loader, *libraries]


def _fill(root: pathlib.Path) -> None:
    for file in glibc_files():
        target = root / str(file).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.resolve(), target)
        target.chmod(0o755)
    for folder in ("proc", "dev", "sys", "tmp", "run", "old", str(INSIDE).lstrip("/")):
        (root / folder).mkdir(parents=True, exist_ok=True)


def _pivot(root: str) -> None:
    """Makes the mount point `root` the root directory of this process."""
    for folder in ("proc", "dev", "sys"):
        _mount(f"/{folder}", f"{root}/{folder}", None, _MS_BIND | _MS_REC)
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"old"), "pivot_root")
    os.chdir("/")
    _check(_libc.umount2(b"/old", _MNT_DETACH), "umount of the old root")


def _in_child(enter: Callable[[], None], steps: Callable[[], None]) -> int:
    """Calls both in a child with a private mount namespace, which cannot import further modules after `enter`. Returns 0 if
    they returned."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _check(_libc.unshare(_CLONE_NEWNS), "unshare")
            _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
            enter()
            steps()
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(tree: pathlib.Path, steps: Callable[[pathlib.Path], None]) -> int:
    """Calls steps(INSIDE) in a root with glibc only, in a child. Returns 0 if it returned."""

    def enter() -> None:
        _mount("bare", root, "tmpfs", 0)
        _fill(pathlib.Path(root))
        _mount(str(tree.resolve()), f"{root}{INSIDE}", None, _MS_BIND)
        _pivot(root)

    with tempfile.TemporaryDirectory(prefix="stasis-bare-") as root:
        return _in_child(enter, lambda: steps(INSIDE))


def run_in(root: pathlib.Path, steps: Callable[[], None], more: dict[str, str] | None = None) -> int:
    """Calls steps() with the folder `root` as root directory, in a child. Returns 0 if it returned. `more`: folders that
    are seen there, by their paths in the new root."""

    def enter() -> None:
        (root / "old").mkdir(exist_ok=True)
        _mount(str(root), str(root), None, _MS_BIND)
        for inside, folder in (more or {}).items():
            os.makedirs(f"{root}{inside}", exist_ok=True)
            _mount(folder, f"{root}{inside}", None, _MS_BIND)
        _pivot(str(root))

    return _in_child(enter, steps)
