"""What /proc says about processes."""

import os
import pathlib
import signal
import time


class Late(Exception):
    """Something did not happen in time."""


def wait_until(condition, seconds, what):
    """The value of `condition()` as soon as it is true; asked every few milliseconds."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Late(f"{what() if callable(what) else what} (waited {seconds} s)")
        time.sleep(0.005)


def stat(pid):
    """(comm, state, ppid, start time), or None when there is no such process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    comm = text[text.index("(") + 1:text.rindex(")")]
    fields = text[text.rindex(")") + 2:].split()
    return comm, fields[0], int(fields[1]), int(fields[19])


def inner_pid(pid):
    """What the process calls itself by, in its own pid namespace; None when there is no such process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[-1])


def is_alive(pid):
    """Whether it runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found[1] not in "ZX"


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid):
    return [p for p in all_pids() if (stat(p) or (0, 0, -1))[2] == pid]


def tree(pid):
    """The process and all below it."""
    members, at = [pid], 0
    while at < len(members):
        members += children(members[at])
        at += 1
    return members


def describe(pid):
    found = stat(pid)
    if found is None:
        return f"{pid} (gone)"
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        words = b""
    return f"{pid} {found[0]} {found[1]} ppid {found[2]}: {words.decode(errors='replace').strip()}"


def named(name, below):
    """The processes below `below` whose program is called `name`."""
    cut = name[:15]
    return [p for p in tree(below)[1:] if (stat(p) or ("",))[0] == cut]


def end(pid):
    """Kills one process, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
