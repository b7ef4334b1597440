"""jobs_test.py --build DIR [--only CASE]: jobs through the service: what other users can see, and
which calls are operations."""

import os
import pathlib
import re
import sys
import urllib.request

from daemon_fixture import DaemonFixture, demand, main, processes, wait_until
from slow_reader_test import SlowReader

SECRET = "s3cr3t-that-nobody-else-may-see"


def resident(pid):
    """Returns the memory of a process in bytes."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def environment_is_not_shown(fixture: DaemonFixture):
    """All users can read the arguments of all processes: a job's environment must not be in them."""
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())
    counter = str(fixture.world.workloads / "counter")
    pid = stub.Run(messages.RunRequest(job="job", argv=[counter, "--memory", "8M"],
                                       environment={"PASSWORD": SECRET, "LANG": ""})).pid
    given = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    demand(f"PASSWORD={SECRET}".encode() in given, "the job has not got it")
    demand(not [entry for entry in given if entry.startswith(b"LANG=")], "an empty value does not take a name out")
    seen = 0
    for process in processes.all_pids():
        shown = processes.told(process, "cmdline") or b""
        demand(SECRET.encode() not in shown, f"everybody can read it: {shown}")
        seen += b"stasis-shim" in shown
    demand(seen == 1, "there is no shim")
    log = fixture.world.state / "run" / "stasisd.log"
    demand(SECRET not in log.read_text(), "it is in the log")
    stub.KillJob(messages.KillJobRequest(job="job", signal=9))
    stub.WaitJob(messages.WaitJobRequest(job="job"))
    stub.DeleteJob(messages.DeleteJobRequest(job="job"))


def ending_jobs_are_operations(fixture: DaemonFixture):
    """KillJob and DeleteJob have ids, are listed, counted and logged, can be cancelled before they
    begin, and are rejected by a draining daemon."""
    import grpc
    world = fixture.world
    log = world.folder / "log"
    fixture.hold_workers({"STASIS_DAEMON_LOG_FILE": str(log), "STASIS_METRICS_LISTEN": "127.0.0.1:0"})
    messages, stubs = fixture.stubs()
    stub = stubs.StasisStub(fixture.channel())
    job = fixture.counter()

    def held(call):
        """Returns the call in progress and its listing. Uses the same connection, so there is no
        other worker."""
        fixture.hold("worker")
        begun = call()
        listed = wait_until(lambda: stub.ListOperations(messages.ListOperationsRequest()).operations, 60, "it is not listed")
        demand(len(listed) == 1 and listed[0].target == "job" and listed[0].uid == 0, f"{listed}")
        return begun, listed[0]

    def kill():
        return stub.KillJob.future(messages.KillJobRequest(job="job", signal=9))

    def delete():
        return stub.DeleteJob.future(messages.DeleteJobRequest(job="job"))

    begun, listed = held(kill)
    stub.CancelOperation(messages.CancelOperationRequest(operation=listed.id))
    fixture.let_go("worker")
    demand(begun.code() == grpc.StatusCode.CANCELLED, f"{begun}")
    job.expect_running()
    ids = []
    for call, verb in ((kill, "killjob"), (delete, "deletejob")):
        begun, listed = held(call)
        demand(listed.verb == verb and re.fullmatch("[0-9a-f]{16}", listed.id), f"{listed}")
        ids.append((listed.id, verb))
        fixture.let_go("worker")
        begun.result(60)
        if verb == "killjob":
            stub.WaitJob(messages.WaitJobRequest(job="job"))
    demand(world.stasis("ps", "-a", "--json").json()["jobs"] == [], "it is not deleted")
    lines = fixture.log_lines(log)
    for ident, verb in ids:
        said = [line for line in lines if line.get("operation") == ident]
        demand([line["message"] for line in said] == ["begun", "ended"], f"{said}")
        demand(said[-1]["outcome"] == "done" and said[-1]["verb"] == verb and said[-1]["target"] == "job", f"{said}")
    metrics = urllib.request.urlopen(f"http://{fixture.status()['metrics']}/metrics", timeout=60).read().decode()
    for verb, outcome in (("killjob", "failed"), ("killjob", "done"), ("deletejob", "done")):
        counted = re.search(rf'stasis_operations_total{{verb="{verb}",outcome="{outcome}",[^}}]*}} 1', metrics)
        demand(counted, f"{verb} {outcome} is not counted:\n" +
               "\n".join(line for line in metrics.splitlines() if line.startswith("stasis_operations_total")))
    # While another operation is in progress, the drain neither ends nor admits new operations.
    second = fixture.counter("second")
    fixture.hold("worker")
    last = stub.KillJob.future(messages.KillJobRequest(job="second", signal=9))
    fixture.await_operation()
    drain = world.begin("daemon", "drain")
    wait_until(lambda: fixture.status()["draining"], 60, "it does not drain")
    for method, request in ((stub.KillJob, messages.KillJobRequest(job="second", signal=9)),
                            (stub.DeleteJob, messages.DeleteJobRequest(job="second"))):
        try:
            method(request, timeout=60)
            demand(False, "it was begun")
        except grpc.RpcError as error:
            demand(error.code() == grpc.StatusCode.UNAVAILABLE and "drained" in error.details(), f"{error}")
    fixture.let_go("worker")
    last.result(60)
    demand(drain.wait().code == 0, f"{drain}")
    fixture.await_end()
    second.await_gone()
    world.stasis("delete", "second")
    fixture.leave_workers()


def log_is_read(fixture: DaemonFixture):
    """Reads the current log, or the growing log until the job has ended: completely, in small parts, with arbitrary
    bytes."""
    import grpc
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())
    goes_on = fixture.world.folder / "go"
    script = f"printf 'a\\377\\000\\n'; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo begun; " \
             f"while [ ! -e {goes_on} ]; do sleep 0.01; done; echo last"
    log = pathlib.Path(stub.Run(messages.RunRequest(job="job", argv=["/bin/sh", "-c", script], no_agent=True)).log)
    wait_until(lambda: b"begun" in log.read_bytes(), 60, "the job does not begin")

    def read(**options):
        return [part.data for part in stub.ReadLog(messages.ReadLogRequest(job="job", **options), timeout=60)]

    parts = read()
    demand(b"".join(parts) == log.read_bytes(), f"{len(b''.join(parts))} bytes are read of {log.stat().st_size}")
    demand(b"".join(parts).startswith(b"a\xff\0\n") and max(map(len, parts)) <= 65536, "the parts are not as they should be")
    demand(read(tail_bytes=8) == [b"begun\n"], f"its end is {read(tail_bytes=8)}")
    fixture.await_workers_end()
    following = stub.ReadLog(messages.ReadLogRequest(job="job", follow=True, tail_bytes=8), timeout=60)
    demand(next(following).data == b"begun\n", "it does not begin with the end")
    demand(len(fixture.workers()) == 1 and fixture.operations() == [], "it is no call that changes nothing")
    goes_on.touch()
    demand([part.data for part in following] == [b"last\n"], "later output is not read")
    stub.WaitJob(messages.WaitJobRequest(job="job"))
    demand(b"".join(read(follow=True)) == log.read_bytes(), "the log of an ended job is incomplete")
    # The worker exits after its client has disconnected.
    fixture.await_workers_end()
    log.unlink()
    for job in ("job", "nobody", "../job"):
        try:
            list(stub.ReadLog(messages.ReadLogRequest(job=job), timeout=60))
            demand(False, f"{job} has a log")
        except grpc.RpcError as error:
            demand(error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), f"{job}: {error}")
    stub.DeleteJob(messages.DeleteJobRequest(job="job"))


def slow_reader_of_a_log(fixture: DaemonFixture):
    """The daemon buffers nothing for a slow client: its worker waits, and exits with the client."""
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())
    log = pathlib.Path(stub.Run(messages.RunRequest(job="job", argv=["/bin/sleep", "1000"], no_agent=True)).log)
    with open(log, "ab") as more:
        for _ in range(64):
            more.write(b"x" * (1 << 20))
    fixture.await_workers_end()
    before = resident(fixture.pid)
    reader = SlowReader(fixture, "ReadLog", messages.ReadLogRequest(job="job").SerializeToString())
    worker, = wait_until(fixture.workers, 60, "no worker reads")
    waits = pathlib.Path(f"/proc/{worker}/wchan")
    wait_until(lambda: "pipe_write" in waits.read_text(), 60, lambda: f"the worker is in {waits.read_text()}")
    demand(resident(fixture.pid) < before + (16 << 20), f"it holds {(resident(fixture.pid) - before) >> 20} MiB")
    fixture.world.stasis("ps")
    reader.close()
    fixture.await_workers_end()
    stub.KillJob(messages.KillJobRequest(job="job", signal=9))
    stub.WaitJob(messages.WaitJobRequest(job="job"))
    stub.DeleteJob(messages.DeleteJobRequest(job="job"))


if __name__ == "__main__":
    sys.exit(main([environment_is_not_shown, ending_jobs_are_operations, log_is_read, slow_reader_of_a_log]))
