"""Information about processes from /proc."""

import ctypes
import os
import pathlib
import re
import signal
import time


class Late(Exception):
    """An expected event did not happen in time."""


def wait_until(condition, seconds, what):
    """Polls `condition()`, less often the longer it takes, and returns its value once it is true."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Late(f"{what() if callable(what) else what} (waited {seconds} s)")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.03)


def told(pid, name):
    """Returns the content of /proc/PID/NAME, or None if there is no such process; any process may
    end at any time."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None


def text_of(path):
    """Returns the content of a file, or an empty string if it does not exist. For files that other processes create and
    remove."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def stat(pid):
    """Returns (comm, state, ppid, start time), or None if there is no such process."""
    text = told(pid, "stat")
    if text is None:
        return None
    text = text.decode(errors="replace")
    comm = text[text.index("(") + 1:text.rindex(")")]
    fields = text[text.rindex(")") + 2:].split()
    return comm, fields[0], int(fields[1]), int(fields[19])


def called(comm):
    """Returns the processes of that name, except children that one of them has forked: these have
    the same name until exec."""
    found = {pid: now for pid in all_pids() if (now := stat(pid)) and now[0] == comm}
    return [pid for pid, (_, _, parent, _) in found.items() if parent not in found]


def inner_pid(pid):
    """Returns the process's pid in its own pid namespace; None if there is no such process."""
    text = told(pid, "status")
    return None if text is None else int(re.search(rb"^NSpid:.*\s(\d+)$", text, re.M)[1])


def is_alive(pid):
    """Returns whether the process runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found[1] not in "ZX"


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def spawn_with_pid(pid):
    """Creates a sleeping process with this pid: clone3(2) with set_tid."""
    libc = ctypes.CDLL(None, use_errno=True)
    tid = (ctypes.c_int32 * 1)(pid)
    # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size
    args = (ctypes.c_uint64 * 10)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(tid), 1)
    made = libc.syscall(435, ctypes.byref(args), ctypes.sizeof(args))
    if made == 0:
        os.execv("/bin/sleep", ["sleep", "1000"])
    if made != pid:
        raise OSError(ctypes.get_errno(), f"clone3 with pid {pid}: {os.strerror(ctypes.get_errno())}")
    return pid


def children(pid):
    return [p for p in all_pids() if (stat(p) or (0, 0, -1))[2] == pid]


def tree(pid):
    """Returns the process and all its descendants."""
    members, at = [pid], 0
    while at < len(members):
        members += children(members[at])
        at += 1
    return members


def describe(pid):
    found = stat(pid)
    if found is None:
        return f"{pid} (gone)"
    words = (told(pid, "cmdline") or b"").replace(b"\0", b" ")
    return f"{pid} {found[0]} {found[1]} ppid {found[2]}: {words.decode(errors='replace').strip()}"


def named(name, below):
    """Returns the processes below `below` whose program is called `name`."""
    cut = name[:15]
    return [p for p in tree(below)[1:] if (stat(p) or ("",))[0] == cut]


def interrupt(pid):
    """Sends SIGINT, and waits until the process has taken it."""
    os.kill(pid, signal.SIGINT)

    def taken():
        found = re.search(rb"^ShdPnd:\s*([0-9a-f]+)$", told(pid, "status") or b"", re.MULTILINE)
        return found is None or not int(found[1], 16) >> (signal.SIGINT - 1) & 1
    wait_until(taken, 60, f"process {pid} does not take SIGINT")


def end(pid):
    """Kills one process if it still exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
