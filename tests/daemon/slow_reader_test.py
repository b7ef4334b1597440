"""slow_reader_test.py --build DIR [--only CASE]: a client that does not read answers delays only
itself."""

import socket
import struct
import sys
import time

from daemon_fixture import DaemonFixture, demand, main, wait_until

# A drain waits some seconds for answers to be read (Operations::Drain).
DRAIN_S = 15


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    """Encodes an HPACK header without index and compression."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class SlowReader:
    """A raw HTTP/2 call with a receive window of zero."""

    def __init__(self, fixture, method, request):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(fixture.socket)
        headers = b"".join(header(name, value) for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/stasis.v1.Stasis/{method}".encode()),
            (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
        initial_window_size = struct.pack(">HI", 4, 0)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, initial_window_size) + frame(1, 4, 1, headers)
            + frame(0, 1, 1, b"\0" + struct.pack(">I", len(request)) + request))

    def close(self):
        self.socket.close()


def does_not_hold_up_a_drain(fixture: DaemonFixture):
    messages, _ = fixture.start().stubs()
    job = fixture.counter()
    reader = SlowReader(fixture, "Suspend", messages.SuspendRequest(target="job").SerializeToString())
    wait_until(lambda: job.state() == "suspended", 60, lambda: f"it is {job.state()}")
    fixture.await_workers_end()
    # The operation is done; only its answer is unread.
    fixture.await_no_operation()
    began = time.monotonic()
    fixture.drain()
    took = time.monotonic() - began
    demand(took < DRAIN_S, f"a drain takes {took:.1f} s")
    reader.close()
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def does_not_hold_up_the_operation(fixture: DaemonFixture):
    """Neither later operations on that job nor other users' calls are delayed."""
    messages, _ = fixture.start().stubs()
    job = fixture.counter()
    readers = []
    for method, request, state in (("Suspend", messages.SuspendRequest, "suspended"),
                                   ("Resume", messages.ResumeRequest, "running")) * 2:
        readers.append(SlowReader(fixture, method, request(target="job").SerializeToString()))
        wait_until(lambda state=state: job.state() == state, 60, lambda: f"it is {job.state()}")
        fixture.await_workers_end()
    fixture.world.stasis("suspend", "job")
    fixture.world.stasis("resume", "job")
    for reader in readers:
        reader.close()
    fixture.end(job)


if __name__ == "__main__":
    sys.exit(main([does_not_hold_up_a_drain, does_not_hold_up_the_operation]))
