"""calls_test.py --build DIR [--only CASE]: operations whose client or worker goes away.
kill_table.py tests the death of the daemon."""

import os
import signal
import sys

from daemon_fixture import DaemonFixture, demand, main, processes, wait_until

PHASE = "gpu-lock"


def begun(fixture: DaemonFixture, *words):
    """Starts a suspend that is held in its middle."""
    fixture.start_holding(PHASE)
    job = fixture.counter()
    fixture.await_workers_end()  # the next process belongs to the operation
    fixture.hold(PHASE)
    operation = fixture.world.begin("suspend", "job", *words)
    fixture.await_phase(PHASE)
    return job, operation


def ctrl_c(fixture: DaemonFixture):
    """Ctrl-C cancels the operation: everything is rolled back."""
    job, operation = begun(fixture)
    os.kill(operation.pid, signal.SIGINT)
    wait_until(lambda: fixture.operations()[0]["cancelled"], 60, "the daemon is not asked to cancel it")
    fixture.let_go(PHASE)
    demand(operation.wait().code == 1 and "cancelled" in operation.err, f"{operation}")
    demand("as it was before" in operation.err or "still running" in operation.err, f"{operation}")
    demand(job.state() == "running", f"it is {job.state()}")
    fixture.end(job)


def client_killed(fixture: DaemonFixture):
    """The operation continues without its client."""
    job, operation = begun(fixture)
    processes.end(operation.pid)
    operation.wait()
    fixture.let_go(PHASE)
    fixture.await_workers_end()
    demand(job.state() == "suspended", f"it is {job.state()}")
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def hang_up(fixture: DaemonFixture):
    """Losing the terminal does not cancel the operation."""
    job, operation = begun(fixture)
    os.kill(operation.pid, signal.SIGHUP)
    demand(operation.wait().code == 128 + signal.SIGHUP, f"{operation}")
    demand(not fixture.operations()[0]["cancelled"], "it was cancelled")
    fixture.let_go(PHASE)
    fixture.await_workers_end()
    demand(job.state() == "suspended", f"it is {job.state()}")
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def daemon_told_to_end(fixture: DaemonFixture):
    """The daemon stops without waiting for the operation; its clients are notified, and the operation completes."""
    job, operation = begun(fixture)
    fixture.kill(signal.SIGTERM)  # returns after the daemon has exited, while the operation is held
    demand(operation.wait().code == 6, f"{operation}")
    for words in ("the daemon has gone away", "continues by itself", "`stasis ps -a`", "`stasis recover`"):
        demand(words in operation.err, f"the message lacks '{words}':\n{operation}")
    demand(len(fixture.workers()) == 1, "the worker has ended")
    fixture.let_go(PHASE)
    fixture.await_workers_end()
    fixture.start_again()
    demand(job.state() == "suspended", f"it is {job.state()}")
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def cancelled_before_it_begins(fixture: DaemonFixture):
    """A worker that cannot receive a cancellation yet sees it later, and touches nothing."""
    log = fixture.world.folder / "log"
    fixture.hold_workers({"STASIS_DAEMON_LOG_FILE": str(log), "STASIS_DAEMON_LOG_LEVEL": "debug"})
    job = fixture.counter()
    fixture.hold("worker")
    operation = fixture.begin_waiting("suspend", "job")
    os.kill(operation.pid, signal.SIGINT)
    wait_until(lambda: fixture.operations()[0]["cancelled"], 60, "it is not cancelled")
    fixture.let_go("worker")
    demand(operation.wait().code == 1 and "cannot suspend job: cancelled" in operation.err, f"{operation}")
    demand("as it was before" in operation.err, f"{operation}")
    lines = fixture.log_lines(log)
    said = [line["message"] for line in lines if line.get("verb") == "suspend"]
    demand(said == ["begun", "ended"], f"a phase was begun: {said}")
    demand(job.state() == "running", f"it is {job.state()}")
    fixture.end(job)
    fixture.leave_workers()


def second_operation(fixture: DaemonFixture):
    """Two operations on one job exclude each other, with and without the daemon."""
    job, operation = begun(fixture)
    for without in ([], ["--no-daemon"]):
        fixture.world.stasis(*without, "dump", "job", expect=7)
        demand("job" in fixture.world.last.err, f"{fixture.world.last}")
    fixture.let_go(PHASE)
    demand(operation.wait().code == 0, f"{operation}")
    fixture.world.stasis("resume", "job")
    fixture.end(job)


def reader_killed(fixture: DaemonFixture):
    """A call that only waits ends with its client."""
    fixture.start()
    job = fixture.counter()
    reader = fixture.begin_waiting("wait", "job")
    processes.end(reader.pid)
    reader.wait()
    fixture.await_workers_end()
    fixture.end(job)


def daemon_ends_under_a_reader(fixture: DaemonFixture):
    fixture.start()
    job = fixture.counter()
    reader = fixture.begin_waiting("wait", "job")
    fixture.kill()
    demand(reader.wait().code == 1 and "the daemon has gone away" in reader.err, f"{reader}")
    fixture.await_workers_end()
    fixture.start()
    fixture.end(job)


def worker_killed(fixture: DaemonFixture):
    """The error reports the killed worker, and `recover` cleans up."""
    job, operation = begun(fixture)
    worker, = fixture.workers()
    processes.end(worker)
    demand(operation.wait().code == 6, f"{operation}")
    for words in ("cannot suspend job: the worker was killed by signal 9", "`stasis recover`"):
        demand(words in operation.err, f"{operation}")
    fixture.let_go(PHASE)
    recovered = fixture.world.stasis("recover").out
    demand("suspend" in recovered and "job" in recovered, f"the message does not say what was recovered: {recovered}")
    demand(job.state() == "running", f"it is {job.state()}")
    fixture.end(job)


def few_descriptors(fixture: DaemonFixture):
    """A daemon without free descriptors fails calls, and works again once it has some."""
    world = fixture.world
    fixture.start()
    job = fixture.counter()
    fixture.await_nobody()
    fds = len(os.listdir(f"/proc/{fixture.pid}/fd"))
    for left in (0, 1, 2, 4):
        world.shell(f"prlimit --pid {fixture.pid} --nofile={fds + left}:")
        demand(world.stasis("suspend", "job", expect=1).err, "the message has no reason")
        demand(processes.is_alive(fixture.pid), "the daemon has ended")
    world.shell(f"prlimit --pid {fixture.pid} --nofile=1024:")
    world.stasis("suspend", "job")
    world.stasis("resume", "job")
    fixture.end(job)


if __name__ == "__main__":
    sys.exit(main([ctrl_c, client_killed, hang_up, daemon_told_to_end, cancelled_before_it_begins, second_operation,
                   reader_killed, daemon_ends_under_a_reader, worker_killed, few_descriptors]))
