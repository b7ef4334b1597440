"""calls_test.py --build DIR [--only CASE]: operations whose client or worker goes away.
kill_table.py tests the death of the daemon."""

import os
import signal
import sys

from house import House, demand, main, processes, wait_until

PHASE = "gpu-lock"


def begun(house: House, *words):
    """Starts a suspend that is held in its middle."""
    house.start_holding(PHASE)
    job = house.counter()
    house.await_workers_end()  # the next process belongs to the operation
    house.hold(PHASE)
    operation = house.world.begin("suspend", "job", *words)
    house.await_phase(PHASE)
    return job, operation


def ctrl_c(house: House):
    """Cancels it: everything is rolled back."""
    job, operation = begun(house)
    os.kill(operation.pid, signal.SIGINT)
    wait_until(lambda: house.operations()[0]["cancelled"], 60, "the daemon is not asked to cancel it")
    house.let_go(PHASE)
    demand(operation.wait().code == 1 and "cancelled" in operation.err, f"{operation}")
    demand("as it was before" in operation.err or "still running" in operation.err, f"{operation}")
    demand(job.state() == "running", f"it is {job.state()}")
    house.end(job)


def client_killed(house: House):
    """The operation continues without its client."""
    job, operation = begun(house)
    processes.end(operation.pid)
    operation.wait()
    house.let_go(PHASE)
    house.await_workers_end()
    demand(job.state() == "suspended", f"it is {job.state()}")
    house.world.stasis("resume", "job")
    house.end(job)


def hang_up(house: House):
    """Losing the terminal does not cancel the operation."""
    job, operation = begun(house)
    os.kill(operation.pid, signal.SIGHUP)
    demand(operation.wait().code == 128 + signal.SIGHUP, f"{operation}")
    demand(not house.operations()[0]["cancelled"], "it was cancelled")
    house.let_go(PHASE)
    house.await_workers_end()
    demand(job.state() == "suspended", f"it is {job.state()}")
    house.world.stasis("resume", "job")
    house.end(job)


def daemon_told_to_end(house: House):
    """The daemon stops without waiting for the operation; its clients are told, and the operation
    completes."""
    job, operation = begun(house)
    house.kill(signal.SIGTERM)  # it has exited when this returns, while the operation is held
    demand(operation.wait().code == 6, f"{operation}")
    for words in ("the daemon has gone away", "continues by itself", "`stasis ps -a`", "`stasis recover`"):
        demand(words in operation.err, f"the message lacks '{words}':\n{operation}")
    demand(len(house.workers()) == 1, "the worker has ended")
    house.let_go(PHASE)
    house.await_workers_end()
    house.start_again()
    demand(job.state() == "suspended", f"it is {job.state()}")
    house.world.stasis("resume", "job")
    house.end(job)


def cancelled_before_it_begins(house: House):
    """A worker that cannot receive a cancellation yet sees it later, and touches nothing."""
    log = house.world.folder / "log"
    house.hold_workers({"STASIS_DAEMON_LOG_FILE": str(log), "STASIS_DAEMON_LOG_LEVEL": "debug"})
    job = house.counter()
    house.hold("worker")
    operation = house.begin_waiting("suspend", "job")
    os.kill(operation.pid, signal.SIGINT)
    wait_until(lambda: house.operations()[0]["cancelled"], 60, "it is not cancelled")
    house.let_go("worker")
    demand(operation.wait().code == 1 and "cannot suspend job: cancelled" in operation.err, f"{operation}")
    demand("as it was before" in operation.err, f"{operation}")
    lines = house.log_lines(log)
    said = [line["message"] for line in lines if line.get("verb") == "suspend"]
    demand(said == ["begun", "ended"], f"a phase was begun: {said}")
    demand(job.state() == "running", f"it is {job.state()}")
    house.end(job)
    house.leave_workers()


def second_operation(house: House):
    """Two operations on one job exclude each other, whoever requested them."""
    job, operation = begun(house)
    for without in ([], ["--no-daemon"]):
        house.world.stasis(*without, "dump", "job", expect=7)
        demand("job" in house.world.last.err, f"{house.world.last}")
    house.let_go(PHASE)
    demand(operation.wait().code == 0, f"{operation}")
    house.world.stasis("resume", "job")
    house.end(job)


def reader_killed(house: House):
    """A call that only waits ends with its client."""
    house.start()
    job = house.counter()
    reader = house.begin_waiting("wait", "job")
    processes.end(reader.pid)
    reader.wait()
    house.await_workers_end()
    house.end(job)


def daemon_ends_under_a_reader(house: House):
    house.start()
    job = house.counter()
    reader = house.begin_waiting("wait", "job")
    house.kill()
    demand(reader.wait().code == 1 and "the daemon has gone away" in reader.err, f"{reader}")
    house.await_workers_end()
    house.start()
    house.end(job)


def worker_killed(house: House):
    """The error says so, and `recover` cleans up."""
    job, operation = begun(house)
    worker, = house.workers()
    processes.end(worker)
    demand(operation.wait().code == 6, f"{operation}")
    for words in ("cannot suspend job: the worker was killed by signal 9", "`stasis recover`"):
        demand(words in operation.err, f"{operation}")
    house.let_go(PHASE)
    recovered = house.world.stasis("recover").out
    demand("suspend" in recovered and "job" in recovered, f"the message does not say what was recovered: {recovered}")
    demand(job.state() == "running", f"it is {job.state()}")
    house.end(job)


def few_descriptors(house: House):
    """A daemon without free descriptors fails calls, and works again once it has some."""
    world = house.world
    house.start()
    job = house.counter()
    house.await_nobody()
    fds = len(os.listdir(f"/proc/{house.pid}/fd"))
    for left in (0, 1, 2, 4):
        world.shell(f"prlimit --pid {house.pid} --nofile={fds + left}:")
        demand(world.stasis("suspend", "job", expect=1).err, "the message has no reason")
        demand(processes.is_alive(house.pid), "the daemon has ended")
    world.shell(f"prlimit --pid {house.pid} --nofile=1024:")
    world.stasis("suspend", "job")
    world.stasis("resume", "job")
    house.end(job)


if __name__ == "__main__":
    sys.exit(main([ctrl_c, client_killed, hang_up, daemon_told_to_end, cancelled_before_it_begins, second_operation,
                   reader_killed, daemon_ends_under_a_reader, worker_killed, few_descriptors]))
