#!/usr/bin/python3
"""Calls stasisd: runs a program as a job, suspends it, resumes it, and dumps it.

    protoc -I proto --python_out=stubs --grpc_out=stubs \
        --plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin proto/stasis/v1/stasis.proto
    stasis daemon start
    PYTHONPATH=stubs python3 docs/examples/client.py COMMAND [ARG...]

On Debian: protobuf-compiler-grpc, python3-grpcio, python3-protobuf. The service is described in docs/api.md.
"""

import argparse
import sys
import time

import grpc
from stasis.v1 import stasis_pb2 as api
from stasis.v1 import stasis_pb2_grpc


def details(failed):
    """What the command line would have printed, from the trailer of a failed call."""
    for name, value in failed.trailing_metadata() or ():
        if name == "stasis-error-bin":
            error = api.Error.FromString(value)
            words = ": ".join([*reversed(error.context), error.message])
            return f"{words}. {error.hint}".strip()
    return f"{failed.code().name}: {failed.details()}"


def follow(events):
    """Prints the phases of an operation as they end; its result. Going away from here would not end it."""
    for event in events:
        if event.HasField("phase_ended"):
            print(f"  {event.phase_ended.name:20} {event.phase_ended.seconds * 1000:8.1f} ms")
        elif event.HasField("result"):
            return event.result
    raise RuntimeError("a call that succeeds ends with a result")


def wait_for_gpu(stub, job):
    """Until the program has GPU memory. A real client would rather ask the program itself."""
    while True:
        found = stub.GetJob(api.GetJobRequest(job=job))
        if found.gpu_bytes > 0:
            return found
        if found.state not in ("starting", "running"):
            raise RuntimeError(f"{job} is {found.state}")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description="Runs a program, suspends, resumes and dumps it.")
    parser.add_argument("--socket", default="/run/stasisd/stasisd.sock")
    parser.add_argument("--job", default="", help="its name; without one it gets one")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    with grpc.insecure_channel(f"unix:{options.socket}") as channel:
        stub = stasis_pb2_grpc.StasisStub(channel)
        try:
            job = stub.Run(api.RunRequest(job=options.job, argv=options.command)).job
            found = wait_for_gpu(stub, job)
            print(f"{job}: process {found.pid}, {found.gpu_bytes >> 20} MiB on the GPU")

            print("suspend")
            result = follow(stub.Suspend(api.SuspendRequest(target=job)))
            print(f"{job} has given up {result.device_bytes >> 20} MiB in {result.total_s:.2f} s")

            print("resume")
            follow(stub.Resume(api.ResumeRequest(target=job)))

            print("dump")
            result = follow(stub.Dump(api.DumpRequest(target=job)))
            print(f"{job} has ended; `stasis restore {job}` brings it back from {result.image}")
        except grpc.RpcError as failed:
            sys.exit(details(failed))


if __name__ == "__main__":
    main()
