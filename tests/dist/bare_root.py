"""A root file system with glibc only, as on a minimal machine."""

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable

# The place of the tree in it.
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


def _enter(root: str, tree: pathlib.Path) -> None:
    """Makes `root` the root directory of this process and its children, in a private mount
    namespace."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("bare", root, "tmpfs", 0)
    _fill(pathlib.Path(root))
    _mount(str(tree), f"{root}{INSIDE}", None, _MS_BIND)
    for folder in ("proc", "dev", "sys"):
        _mount(f"/{folder}", f"{root}/{folder}", None, _MS_BIND | _MS_REC)
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"old"), "pivot_root")
    os.chdir("/")
    _check(_libc.umount2(b"/old", _MNT_DETACH), "umount of the old root")


def run(tree: pathlib.Path, steps: Callable[[pathlib.Path], None]) -> int:
    """Calls steps(INSIDE) in that root, in a child, which cannot import further modules. Returns 0
    if it returned."""
    with tempfile.TemporaryDirectory(prefix="stasis-bare-") as root:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _enter(root, tree.resolve())
                steps(INSIDE)
                status = 0
            except SystemExit as end:
                status = end.code
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
