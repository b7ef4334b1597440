"""unread.py [PORT]: a program and its child, which have written to each other by TCP more than the kernel can send, because
neither reads. With PORT also connected to a port of 127.0.0.1. Like a workload it prints READY and ROUNDs, and ends on
SIGTERM. On SIGHUP both read, and it prints WHOLE if nothing is lost or changed."""

import os
import signal
import socket
import sys
import time

BLOCK = bytes(i % 251 for i in range(251 * 64))


def is_whole(connection, total):
    """Reads to the end. Returns true if `total` bytes come, each as written."""
    connection.shutdown(socket.SHUT_WR)
    got = 0
    while data := connection.recv(len(BLOCK)):
        at = got % len(BLOCK)
        if data != (BLOCK + BLOCK)[at:at + len(data)]:
            return False
        got += len(data)
    return got == total


def fill(connection):
    """Returns how many bytes it has written."""
    connection.setblocking(False)
    total = 0
    try:
        while True:
            total += connection.send(BLOCK[total % len(BLOCK):])
    except BlockingIOError:
        connection.setblocking(True)
        return total


def main(outside):
    wanted, ended = [], []
    listener = socket.create_server(("127.0.0.1", 0))
    told, tell = os.pipe()
    answered, answer = os.pipe()
    child = os.fork()
    if child == 0:
        connection = socket.create_connection(listener.getsockname())
        listener.close()
        os.write(answer, b"%d" % fill(connection))
        os._exit(0 if is_whole(connection, int(os.read(told, 64))) else 1)
    signal.signal(signal.SIGHUP, lambda *_: wanted.append(1))
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    connection, _ = listener.accept()
    listener.close()
    other = socket.create_connection(("127.0.0.1", int(outside[0]))) if outside else None
    total, other_total = fill(connection), int(os.read(answered, 64))
    print("READY", flush=True)
    number = 0
    while not ended:
        if wanted:
            wanted.clear()
            os.write(tell, b"%d" % total)
            whole = is_whole(connection, other_total)
            print("WHOLE" if os.waitpid(child, 0)[1] == 0 and whole else "FAILED: not whole", flush=True)
        number += 1
        print(f"ROUND {number} {total}", flush=True)
        time.sleep(0.02)
    if other:
        other.sendall(b"end")
    print("EXIT-SUCCESS", flush=True)


main(sys.argv[1:])
