"""What /proc says about processes."""

import os
import pathlib
import re
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


def told(pid, name):
    """What /proc/PID/NAME holds, or None when there is no such process: any may end before it is looked at."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None


def text_of(path):
    """What a file holds, nothing when it is not there: such as one that others write and take away."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def stat(pid):
    """(comm, state, ppid, start time), or None when there is no such process."""
    text = told(pid, "stat")
    if text is None:
        return None
    text = text.decode(errors="replace")
    comm = text[text.index("(") + 1:text.rindex(")")]
    fields = text[text.rindex(")") + 2:].split()
    return comm, fields[0], int(fields[1]), int(fields[19])


def called(comm):
    """The processes of that name, but for those that one of them has forked: they are called as it is until they have
    become what they are for."""
    found = {pid: now for pid in all_pids() if (now := stat(pid)) and now[0] == comm}
    return [pid for pid, (_, _, parent, _) in found.items() if parent not in found]


def inner_pid(pid):
    """What the process calls itself by, in its own pid namespace; None when there is no such process."""
    text = told(pid, "status")
    return None if text is None else int(re.search(rb"^NSpid:.*\s(\d+)$", text, re.M)[1])


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
    words = (told(pid, "cmdline") or b"").replace(b"\0", b" ")
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
