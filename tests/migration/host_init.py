"""The first process of a test's host, in namespaces of its own: reaps orphans until its input is closed.

usage: host_init.py NAME [SOURCE TARGET]…     mounts each folder or file SOURCE, which only this host has, at TARGET
"""

import os
import signal
import socket
import subprocess
import sys
import threading


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main():
    socket.sethostname(sys.argv[1])
    signal.signal(signal.SIGCHLD, reap)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for source, target in zip(sys.argv[2::2], sys.argv[3::2]):
        subprocess.run(["mount", "--bind", source, target], check=True)
    print("READY", flush=True)
    # The main thread must stay free for the signal.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
