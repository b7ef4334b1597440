"""ports.py FORM: a program with a child that connects to it by TCP. The program closes connections
first, so the kernel keeps them in TIME_WAIT under the program's port for a minute. Like a workload
it prints READY and ROUNDs, and ends on SIGTERM; PORT is its port. On SIGHUP it opens and closes
more connections and prints CLOSED.

    listener      port 0, without SO_REUSEADDR, like NCCL's bootstrap
    reuse         with SO_REUSEADDR, like servers
    any, any6     like `listener`, on all addresses
    kept          like `listener`, and one connection stays open
    accepted      like `kept`, with the listener closed: only the connection has the port
    bound         the listener is closed, and another socket is bound to the port without listening
    cut           like `kept`, but the connection is not checked, so that a dump may close it
    gpu           like `listener`, with memory on the GPU
    outside       only accepts connections and closes them at once
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time

CONNECTIONS = 3


def listen(form):
    family, address = {"any": (socket.AF_INET, "0.0.0.0"), "any6": (socket.AF_INET6, "::")}.get(
        form, (socket.AF_INET, "127.0.0.1"))
    listener = socket.socket(family, socket.SOCK_STREAM)
    if form == "reuse":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, 0))
    listener.listen()
    return listener


def connect(port, asked, answered):
    """The child: opens one connection for each requested line; on "keep" it echoes until the end."""
    while line := asked.readline():
        connection = socket.create_connection(("127.0.0.1", port))
        answered.write("connected\n")
        answered.flush()
        if line == "keep\n":
            if os.fork() == 0:
                while data := connection.recv(64):
                    connection.sendall(data)
                os._exit(0)
        else:
            connection.recv(1)  # end-of-file
        connection.close()
        answered.write("closed\n")
        answered.flush()
    os._exit(0)


def take_memory():
    driver = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 << 20)) == 0


class Peer:
    def __init__(self, listener):
        port = listener.getsockname()[1]
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        if os.fork() == 0:
            os.close(ours_in), os.close(ours_out), listener.close()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            connect(port, os.fdopen(theirs_in), os.fdopen(theirs_out, "w"))
        os.close(theirs_in), os.close(theirs_out)
        self.answers, self.questions = os.fdopen(ours_in), os.fdopen(ours_out, "w")

    def ask(self, listener, what):
        """Returns the accepted connection."""
        self.questions.write(f"{what}\n")
        self.questions.flush()
        assert self.answers.readline() == "connected\n"
        return listener.accept()[0]

    def closed(self):
        assert self.answers.readline() == "closed\n"


def main(form):
    wanted, ended = [], []
    signal.signal(signal.SIGHUP, lambda *_: wanted.append(1))
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    listener = listen(form)
    port = listener.getsockname()[1]
    peer, kept = Peer(listener), None

    def some_connections():
        for _ in range(CONNECTIONS):
            peer.ask(listener, "close").close()
            peer.closed()

    if form == "gpu":
        take_memory()
    if form in ("kept", "accepted", "cut"):
        kept = peer.ask(listener, "keep")
        peer.closed()
    if form != "outside":
        some_connections()
    if form in ("accepted", "bound"):
        listener.close()
    if form == "bound":
        # SO_REUSEADDR would not suffice, because the closed sockets lacked it. Binds like CRIU does
        # for connections.
        listener = socket.socket()
        listener.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
        listener.bind(("127.0.0.1", port))
        listener.setsockopt(socket.IPPROTO_TCP, 19, 0)
    print(f"PORT {port}\nREADY", flush=True)
    number = 0
    while not ended:
        if wanted:
            wanted.clear()
            some_connections()
            print("CLOSED", flush=True)
        if form == "outside" and select.select([listener], [], [], 0)[0]:
            listener.accept()[0].close()
        if kept and form != "cut":
            kept.sendall(b"%d" % number)
            assert kept.recv(64) == b"%d" % number
        number += 1
        print(f"ROUND {number} {port}", flush=True)
        time.sleep(0.02)
    if form not in ("accepted", "bound"):
        some_connections()  # it still listens there
        assert listener.getsockname()[1] == port
    print("EXIT-SUCCESS", flush=True)


main(sys.argv[1])
