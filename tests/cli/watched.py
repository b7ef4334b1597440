"""watched.py FILE: runs until it is killed, with every property that `stasis check` reports as
disturbed by a pause. Keeps FILE open."""
import ctypes
import mmap
import os
import signal
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "setting up")
    return result


held = open(sys.argv[1], "a")
timer = must(libc.timerfd_create(1, 0))
hour = (ctypes.c_long * 4)(0, 0, 3600, 0)
must(libc.timerfd_settime(timer, 0, hour, None))
idle_timer = must(libc.timerfd_create(1, 0))
notify = must(libc.inotify_init1(0))
for folder in (b"/tmp", b"/proc"):
    must(libc.inotify_add_watch(notify, folder, 0x100))
page = mmap.mmap(-1, 4096)
must(libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(page)), ctypes.c_size_t(4096)))


def watch():
    libc.prctl(15, b"pt_nccl_watchdg")  # PR_SET_NAME
    print("READY", flush=True)
    threading.Event().wait()


threading.Thread(target=watch, daemon=True).start()
while True:
    signal.pause()
