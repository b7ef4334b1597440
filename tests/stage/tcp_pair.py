#!/usr/bin/env python3
"""Two processes with a TCP connection to each other over loopback, each with memory of a GPU.

They exchange numbered messages all the time, more than are read at once, and end if one is lost, doubled or changed.
Serves the packets of workloads/counter: `next` (after further messages), `verify` and `quit`. If the connection has
ended, prints LOST and waits for a packet."""

import ctypes
import os
import select
import socket
import struct

NAME = b"tcp-pair"
BLOCK = 1 << 20
MESSAGE = struct.Struct("!cQ500x")  # kind and number: `m`, `v` (verify the GPU memory)
ANSWER = struct.Struct("!cQ")  # `m`, `v`: intact
AHEAD = 400  # messages without an answer
START = 100


class Gpu:
    """A block with a pattern, and a number."""

    def __init__(self, seed):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._pattern = bytes((seed + i) % 251 for i in range(251)) * (BLOCK // 251)
        context, self._at = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(self._at), ctypes.c_size_t(8 + len(self._pattern)))
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(self._at.value + 8), self._pattern, ctypes.c_size_t(len(self._pattern)))

    def _call(self, name, *words):
        if code := getattr(self._cuda, name)(*words):
            raise RuntimeError(f"{name}: {code}")

    def write(self, number):
        self._call("cuMemcpyHtoD_v2", self._at, struct.pack("=Q", number), ctypes.c_size_t(8))

    def read(self):
        number = ctypes.create_string_buffer(8)
        self._call("cuMemcpyDtoH_v2", number, self._at, ctypes.c_size_t(8))
        return struct.unpack("=Q", number.raw)[0]

    def intact(self):
        found = ctypes.create_string_buffer(len(self._pattern))
        self._call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(self._at.value + 8), ctypes.c_size_t(len(self._pattern)))
        return found.raw == self._pattern


class Stream:
    """Reads whole records of a connection."""

    def __init__(self, connection, record):
        self.connection, self._record, self._left = connection, record, b""

    def read(self):
        while len(self._left) < self._record.size:
            got = self.connection.recv(self._record.size - len(self._left))
            if not got:
                raise ConnectionError("the connection has ended")
            self._left += got
        whole, self._left = self._left, b""
        return self._record.unpack(whole)


def demand_next(found, expected):
    if found != expected:
        print(f"WRONG: message {found}, not {expected}", flush=True)
        os._exit(4)


def answer(connection):
    """The second process: checks and answers messages, slower than they are sent."""
    gpu, stream = Gpu(7), Stream(connection, MESSAGE)
    gpu.write(0)
    while True:
        kind, number = stream.read()
        demand_next(number, gpu.read())
        gpu.write(number + 1)
        if kind == b"v" and not gpu.intact():
            kind = b"x"
        connection.sendall(ANSWER.pack(kind, number))
        select.select([], [], [], 0.0005)


class Pair:
    """The first process."""

    def __init__(self, connection):
        self._gpu, self._stream = Gpu(3), Stream(connection, ANSWER)
        self._gpu.write(START)
        self._sent = self._answered = 0
        self._intact = None

    def intact(self):
        return self._gpu.intact()

    def send(self, kind=b"m"):
        self._stream.connection.sendall(MESSAGE.pack(kind, self._sent))
        self._sent += 1

    def step(self):
        """Reads an answer, after sending what may be ahead of it."""
        while self._sent - self._answered < AHEAD:
            self.send()
        kind, number = self._stream.read()
        demand_next(number, self._answered)
        self._answered += 1
        if kind != b"m":
            self._intact = kind == b"v"

    def next(self):
        until = self._sent + 1  # all that a dump can have interrupted
        while self._answered < until:
            self.step()
        self._gpu.write(self._gpu.read() + 1)
        return str(self._gpu.read())

    def verify(self):
        self._intact = None
        self.send(b"v")
        while self._intact is None:
            self.step()
        return f"OK {self._answered}" if self._intact and self.intact() else "BAD"


def serve(pair, packets):
    while True:
        if not select.select([packets], [], [], 0)[0]:
            pair.step()
            continue
        word, peer = packets.recvfrom(64)
        word = word.decode().strip("\n\0")
        reply = {"next": pair.next, "verify": pair.verify, "quit": lambda: "BYE"}[word]()
        packets.sendto(f"{reply}\n".encode(), peer)
        if word == "quit":
            return


def main():
    ctypes.CDLL(None).prctl(15, NAME)  # PR_SET_NAME, for World.named
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        connection = socket.create_connection(listener.getsockname())
        listener.close()
        try:
            answer(connection)
        except ConnectionError:
            select.select([], [], [])  # a restore fails if a process ends before it has ended
    connection, _ = listener.accept()
    listener.close()
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    packets.bind(("127.0.0.1", 0))
    pair = Pair(connection)
    print(f"PORT {packets.getsockname()[1]}", flush=True)
    try:
        serve(pair, packets)
    except ConnectionError as error:
        print(f"LOST: {error}, {'intact' if pair.intact() else 'BAD'}", flush=True)
        packets.sendto(b"BYE\n", packets.recvfrom(64)[1])
    os.kill(child, 9)
    os.waitpid(child, 0)
    print("EXIT-SUCCESS", flush=True)


if __name__ == "__main__":
    main()
