"""grpc_test.py --build DIR [--only CASE]: the gRPC service: health, reflection, and answers to
invalid requests."""

import os
import pathlib
import random
import socket
import sys

from daemon_fixture import DaemonFixture, demand, main, processes, wait_until

SERVICE = "/stasis.v1.Stasis/"
STREAMS = ["Suspend", "Resume", "Dump", "Restore", "ReadLog"]
UNARIES = ["Recover", "Run", "ManageJob", "ListJobs", "GetJob", "WaitJob", "KillJob", "DeleteJob", "ListCheckpoints",
           "CreateKey", "ShowKey", "JoinKey", "ListOperations", "CancelOperation", "GetStatus", "Drain"]


class Raw:
    """Calls with arbitrary bytes. All share one connection, except those with `apart`."""

    def __init__(self, fixture, apart=False):
        self.channel = fixture.channel(apart)

    def call(self, path, request, metadata=(), stream=False):
        """Returns the status' name and text, "OK" and the answer, or the answers of a stream."""
        import grpc
        make = self.channel.unary_stream if stream else self.channel.unary_unary
        try:
            answer = make(path)(request, metadata=metadata, timeout=60)
            return "OK", list(answer) if stream else answer
        except grpc.RpcError as error:
            return error.code().name, error.details()


def health(fixture: DaemonFixture):
    fixture.start()
    raw = Raw(fixture)
    # HealthCheckResponse: status = SERVING.
    demand(raw.call("/grpc.health.v1.Health/Check", b"") == ("OK", b"\x08\x01"), "it is not healthy")
    named = b"\x0a\x10stasis.v1.Stasis"
    demand(raw.call("/grpc.health.v1.Health/Check", named) == ("OK", b"\x08\x01"), "the service is not healthy")
    demand(raw.call("/grpc.health.v1.Health/Check", b"\x0a\x04none")[0] == "NOT_FOUND", "any service is healthy")


def health_of_a_drain(fixture: DaemonFixture):
    """A load balancer must see a draining daemon as unhealthy, also on connections of later callers."""
    fixture.start_holding("gpu-lock")
    job = fixture.counter()
    early = Raw(fixture)
    named = b"\x0a\x10stasis.v1.Stasis"

    def answers():
        return [raw.call("/grpc.health.v1.Health/Check", request)[1] for raw in (early, Raw(fixture))
                for request in (b"", named)]

    demand(answers() == [b"\x08\x01"] * 4, f"{answers()}")
    fixture.hold("gpu-lock")
    operation = fixture.world.begin("suspend", "job")
    fixture.await_phase("gpu-lock")
    fixture.world.stasis("daemon", "drain", "--timeout", "0.05", expect=1)
    # NOT_SERVING.
    demand(answers() == [b"\x08\x02"] * 4, f"{answers()}")
    # A caller with other groups is served by a separate gRPC server.
    os.setgroups([4242])
    demand(answers() == [b"\x08\x02"] * 4, f"{answers()}")
    os.setgroups([])
    fixture.let_go("gpu-lock")
    demand(operation.wait().code == 0, f"{operation}")
    fixture.drain()
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def reflection(fixture: DaemonFixture):
    """A caller without the .proto gets all descriptors."""
    fixture.start()
    channel = fixture.channel()
    ask = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    listed, described = [answer for answer in ask(iter([b"\x3a\x01*", b"\x22\x10stasis.v1.Stasis"]), timeout=60)]
    for service in (b"stasis.v1.Stasis", b"grpc.health.v1.Health"):
        demand(service in listed, f"{service} is not listed: {listed}")
    demand(b"KillJobRequest" in described and b"OperationEvent" in described, "the service is not described")


def errors(fixture: DaemonFixture):
    """The status has gRPC's code, and the trailer has everything that the command line would print."""
    import grpc
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())
    try:
        stub.GetJob(messages.GetJobRequest(job="nobody"))
        demand(False, "there is a job nobody")
    except grpc.RpcError as failed:
        demand(failed.code() == grpc.StatusCode.NOT_FOUND, f"{failed}")
        trailer = dict(failed.trailing_metadata())["stasis-error-bin"]
    error = messages.Error.FromString(trailer)
    demand(error.code == 5 and "nobody" in error.message and not error.not_undone, f"{error}")
    # An error of a stream, with advice.
    try:
        list(stub.Suspend(messages.SuspendRequest(target="nobody")))
    except grpc.RpcError as failed:
        error = messages.Error.FromString(dict(failed.trailing_metadata())["stasis-error-bin"])
    demand(error.code == 5 and list(error.context) == ["cannot suspend nobody"], f"{error}")


def keys(fixture: DaemonFixture):
    """The daemon's worker creates and reads the caller's master key, which no answer contains."""
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())
    created = stub.CreateKey(messages.CreateKeyRequest(), timeout=60)
    shown = stub.ShowKey(messages.ShowKeyRequest(), timeout=60)
    demand((shown.key_id, shown.source, shown.joined) == (created.key_id, "file", False), f"{created} {shown}")
    joined = stub.JoinKey(messages.JoinKeyRequest(), timeout=60)
    demand(joined.changed and stub.ShowKey(messages.ShowKeyRequest(), timeout=60).joined, f"{joined}")
    key = pathlib.Path(created.path).read_text().split("stasis-key-1 ")[1].split()[0]
    demand(len(key) == 64 and not any(key[:16] in str(answer) for answer in (created, shown, joined)), "it has the key")


def nonsense(fixture: DaemonFixture):
    """Any request is answered with a status, and the daemon continues to serve other callers."""
    fixture.start()
    raw = Raw(fixture)
    bytes_of = random.Random(1).randbytes
    garbage = [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", bytes_of(200)]
    for name in STREAMS + UNARIES:
        if name == "Drain":
            continue  # random bytes may be a valid message
        status, words = raw.call(SERVICE + name, garbage[0], stream=name in STREAMS)
        # gRPC parses the messages that the daemon handles itself, and uses this code for invalid
        # ones.
        own = name in ("ListOperations", "CancelOperation", "GetStatus")
        demand(status == ("UNIMPLEMENTED" if own else "INVALID_ARGUMENT"), f"{name} of garbage: {status} {words}")
    for request in garbage[1:]:
        for name in ("Suspend", "GetJob"):
            demand(raw.call(SERVICE + name, request, stream=name in STREAMS)[0] == "INVALID_ARGUMENT", f"{name}")
    context = lambda value: (("stasis-context-bin", value),)  # noqa: E731
    for value in (b"\xff" * 30, bytes_of(1000)):
        status, words = raw.call(SERVICE + "ListJobs", b"", context(value))
        demand(status == "INVALID_ARGUMENT" and "stasis.v1.CallContext" in words, f"{status} {words}")
    # Invalid directories: {folders {run: "relative"}}.
    status, words = raw.call(SERVICE + "ListJobs", b"", context(b"\x0a\x0a\x0a\x08relative"))
    demand(status == "INVALID_ARGUMENT" and "absolute" in words, f"{status} {words}")
    # gRPC answers and closes the connection, which may fail other calls over it. Other connections
    # are unaffected.
    apart = Raw(fixture, apart=True)
    demand(apart.call("/grpc.health.v1.Health/Check", b"")[0] == "OK", "it is not healthy")
    wait_until(lambda: fixture.connected() == 2, 60, lambda: f"{fixture.connected()} are connected, not two")
    status, words = apart.call(SERVICE + "ListJobs", b"", context(b"\x0a" * (80 << 10)))
    demand(status == "RESOURCE_EXHAUSTED", f"a header of 80 KiB: {status} {words}")
    wait_until(lambda: fixture.connected() == 1, 60, lambda: f"{fixture.connected()} are connected, not one")
    for path in [SERVICE + name for name in ("Nothing", "", "suspend", "../Suspend", "WorkerRequest")] + ["/other.Service/Get"]:
        status, words = raw.call(path, b"")
        demand(status == "UNIMPLEMENTED", f"{path}: {status} {words}")

    def target(text):
        size, length = len(text), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return b"\x0a" + length + bytes([size]) + text

    for text in (b"", b"a" * 3_000_000, b"a\0b", b"../../etc", b"\xc3\xa4", b"0", b"-1", b"99999999999999999999"):
        for name in ("Suspend", "Dump", "ManageJob", "GetJob", "KillJob", "DeleteJob"):
            status, words = raw.call(SERVICE + name, target(text), stream=name in STREAMS)
            demand(status in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"), f"{name} {text[:20]}: {status} {words}")
            demand(len(words) < 8000, f"{name}: {len(words)} bytes of words")
    demand(raw.call(SERVICE + "Suspend", target(b"a" * 5_000_000), stream=True)[0] == "RESOURCE_EXHAUSTED", "5 MB")
    # A timeout that is not a number: options { timeout_s: NaN }.
    nan = target(b"x") + b"\x12\x09\x09\x00\x00\x00\x00\x00\x00\xf8\x7f"
    demand(raw.call(SERVICE + "Suspend", nan, stream=True)[0] == "INVALID_ARGUMENT", "a timeout of NaN")
    demand(raw.call(SERVICE + "Drain", b"\x09\x00\x00\x00\x00\x00\x00\xf8\x7f")[0] == "INVALID_ARGUMENT", "a drain of NaN")
    # Input that is not gRPC.
    for words in (b"GET / HTTP/1.1\r\n\r\n", bytes_of(5000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes_of(100), b""):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(fixture.socket)
        try:
            peer.sendall(words)
        except OSError:
            pass
        peer.close()
    demand(processes.is_alive(fixture.pid), "the daemon has ended")
    fixture.world.stasis("ps")
    fixture.await_no_operation()
    fixture.await_workers_end()
    demand(fixture.world.stasis("ps", "-a", "--json").json()["jobs"] == [], "there are jobs")


if __name__ == "__main__":
    sys.exit(main([health, health_of_a_drain, reflection, errors, keys, nonsense]))
