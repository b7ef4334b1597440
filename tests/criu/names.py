"""names.py KIND NAME: a program that takes a name which only one program can have. Like a workload it prints READY and
ROUNDs, and ends on SIGTERM.

    tcp, tcp-shared, udp   NAME is a port of 127.0.0.1; `tcp-shared` with SO_REUSEPORT
    unix, abstract         NAME is a path, or an abstract name
    write, append, map     NAME is a file, which is open for writing or for appending, or mapped
"""

import mmap
import signal
import socket
import sys
import time

INTERVAL_S = 0.01


def take(kind, name):
    """Returns what keeps the name taken."""
    if kind in ("tcp", "tcp-shared"):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == "tcp-shared":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", int(name)))
        listener.listen()
        return listener
    if kind == "udp":
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", int(name)))
        return receiver
    if kind in ("unix", "abstract"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name if kind == "unix" else "\0" + name)
        listener.listen()
        return listener
    if kind == "append":
        return open(name, "ab")
    file = open(name, "r+b")
    if kind == "write":
        return file
    mapping = mmap.mmap(file.fileno(), 0)
    file.close()
    return mapping


def main():
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    taken = take(*sys.argv[1:])
    print("READY", flush=True)
    number = 0
    while not ended:
        time.sleep(INTERVAL_S)
        number += 1
        print(f"ROUND {number} 0", flush=True)
    taken.close()
    print("EXIT-SUCCESS", flush=True)


if __name__ == "__main__":
    main()
