"""An isolated environment for a test: its own pids, mounts, /tmp and network.

After `enter()` this process is the init process of a pid namespace. Every leftover process is
therefore visible (nothing else is in /proc), no other process takes a pid between a dump and its
restore, and the kernel kills everything that is left when this process ends for any reason.
"""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import time

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 1 << 18, 0x1000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS = 0x8914
UNMOUNT_S = 60
SKIPPED = 77

# Directories where a careless program would leave files; empty at the start of the test.
PRIVATE_FOLDERS = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"]


class Unable(Exception):
    pass


def _checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise Unable(f"{what}: {os.strerror(number)}")


def mount(source, target, kind="", flags=0, data=""):
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()),
             f"mount {target}")


def unmount(target):
    """Retries for a limited time, because the last user of the mount may still be exiting."""
    deadline = time.monotonic() + UNMOUNT_S
    while _libc.umount2(target.encode(), 0) != 0:
        if ctypes.get_errno() != errno.EBUSY or time.monotonic() > deadline:
            raise Unable(f"umount {target}: {os.strerror(ctypes.get_errno())}")
        time.sleep(0.005)


def _own_network():
    """Starts the loopback device of this test's network. No other test can take a program's port before its restore."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # struct ifreq: the name, and IFF_UP | IFF_RUNNING.
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", 0x41))


def enter_network():
    """Moves this process, a child of the test, to another network."""
    _checked(_libc.unshare(CLONE_NEWNET), "unshare")
    _own_network()


def _own_mounts(keep):
    """Mounts empty directories over PRIVATE_FOLDERS; paths in `keep` stay visible below them."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    # Parents before their children, which need them.
    held = [(path, os.open(path, os.O_PATH)) for path in sorted(map(os.path.realpath, keep), key=len)]
    for folder in PRIVATE_FOLDERS:
        if os.path.isdir(folder):
            mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for path, fd in held:
        if not os.path.exists(path):
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                os.makedirs(path)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "w").close()
            mount(f"/proc/self/fd/{fd}", path, flags=MS_BIND)
        os.close(fd)


def enter(keep):
    """Returns in a new process in its own namespaces. The calling process waits for it and exits
    with its exit code. Without the necessary rights the test is skipped (exit code 77) with a
    message."""
    try:
        _checked(_libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET), "unshare")
    except Unable as reason:
        print(f"SKIPPED: a test needs root, as CRIU does, for namespaces of its own ({reason})")
        sys.exit(SKIPPED)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        _own_mounts(keep)
        _own_network()
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # Return the same code as a shell.
    os._exit(code if code >= 0 else 128 - code)


def mounts():
    with open("/proc/self/mounts") as file:
        return [line.split()[1] for line in file]
