"""slow_reader_test.py --build DIR [--only CASE]: a client that does not read answers delays only
itself."""

import socket
import struct
import sys
import time

from house import House, demand, main, wait_until

# A drain waits some seconds for answers to be read (Operations::Drain).
DRAIN_S = 15


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    """Encodes an HPACK header without index and compression."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class SlowReader:
    """A raw HTTP/2 call with a receive window of zero."""

    def __init__(self, house, method, request):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(house.socket)
        headers = b"".join(header(name, value) for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/stasis.v1.Stasis/{method}".encode()),
            (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
        initial_window_size = struct.pack(">HI", 4, 0)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, initial_window_size) + frame(1, 4, 1, headers)
            + frame(0, 1, 1, b"\0" + struct.pack(">I", len(request)) + request))

    def close(self):
        self.socket.close()


def does_not_hold_up_a_drain(house: House):
    messages, _ = house.start().stubs()
    job = house.counter()
    reader = SlowReader(house, "Suspend", messages.SuspendRequest(target="job").SerializeToString())
    wait_until(lambda: job.state() == "suspended", 60, lambda: f"it is {job.state()}")
    house.await_workers_end()
    # The operation is done; only its answer is unread.
    house.await_no_operation()
    began = time.monotonic()
    house.drain()
    took = time.monotonic() - began
    demand(took < DRAIN_S, f"a drain takes {took:.1f} s")
    reader.close()
    house.world.stasis("resume", "job")
    house.end(job)


def does_not_hold_up_the_operation(house: House):
    """Neither later operations on that job nor other users' calls are delayed."""
    messages, _ = house.start().stubs()
    job = house.counter()
    readers = []
    for method, request, state in (("Suspend", messages.SuspendRequest, "suspended"),
                                   ("Resume", messages.ResumeRequest, "running")) * 2:
        readers.append(SlowReader(house, method, request(target="job").SerializeToString()))
        wait_until(lambda state=state: job.state() == state, 60, lambda: f"it is {job.state()}")
        house.await_workers_end()
    house.world.stasis("suspend", "job")
    house.world.stasis("resume", "job")
    for reader in readers:
        reader.close()
    house.end(job)


if __name__ == "__main__":
    sys.exit(main([does_not_hold_up_a_drain, does_not_hold_up_the_operation]))
