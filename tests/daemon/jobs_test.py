"""jobs_test.py --build DIR [--only CASE]: jobs by the service: what of them others can see, and which calls are
operations."""

import json
import pathlib
import re
import sys
import urllib.request

from house import House, demand, main, processes, wait_until

SECRET = "s3cr3t-that-nobody-else-may-see"


def environment_is_not_shown(house: House):
    """Anybody reads the arguments of all processes: what a job is given as its environment is in nobody's."""
    messages, stubs = house.start().stubs()
    stub = stubs.StasisStub(house.channel())
    counter = str(house.world.workloads / "counter")
    pid = stub.Run(messages.RunRequest(job="job", argv=[counter, "--memory", "8M"],
                                       environment={"PASSWORD": SECRET, "LANG": ""})).pid
    given = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    demand(f"PASSWORD={SECRET}".encode() in given, "the job has not got it")
    demand(not [entry for entry in given if entry.startswith(b"LANG=")], "an empty value does not take a name out")
    seen = 0
    for process in processes.all_pids():
        shown = pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
        demand(SECRET.encode() not in shown, f"everybody can read it: {shown}")
        seen += b"stasis-shim" in shown
    demand(seen == 1, "there is no shim")
    log = house.world.state / "run" / "stasisd.log"
    demand(SECRET not in log.read_text(), "it is in the log")
    stub.KillJob(messages.KillJobRequest(job="job", signal=9))
    stub.WaitJob(messages.WaitJobRequest(job="job"))
    stub.DeleteJob(messages.DeleteJobRequest(job="job"))


def ending_jobs_are_operations(house: House):
    """KillJob and DeleteJob have ids, are listed, counted and logged, can be cancelled before they begin, and are not
    begun by a daemon that is drained."""
    import grpc
    world = house.world
    log = world.folder / "log"
    house.hold_workers({"STASIS_DAEMON_LOG_FILE": str(log), "STASIS_METRICS_LISTEN": "127.0.0.1:0"})
    messages, stubs = house.stubs()
    stub = stubs.StasisStub(house.channel())
    job = house.counter()

    def held(call):
        """The call under way, and what is listed of it."""
        house.hold("worker")
        begun = call()
        wait_until(house.workers, 10, "no worker is started")
        listed = stub.ListOperations(messages.ListOperationsRequest()).operations
        demand(len(listed) == 1 and listed[0].target == "job" and listed[0].uid == 0, f"{listed}")
        return begun, listed[0]

    def kill():
        return stub.KillJob.future(messages.KillJobRequest(job="job", signal=9))

    def delete():
        return stub.DeleteJob.future(messages.DeleteJobRequest(job="job"))

    begun, listed = held(kill)
    stub.CancelOperation(messages.CancelOperationRequest(operation=listed.id))
    house.let_go("worker")
    demand(begun.code() == grpc.StatusCode.CANCELLED, f"{begun}")
    job.expect_running()
    ids = []
    for call, verb in ((kill, "killjob"), (delete, "deletejob")):
        begun, listed = held(call)
        demand(listed.verb == verb and re.fullmatch("[0-9a-f]{16}", listed.id), f"{listed}")
        ids.append((listed.id, verb))
        house.let_go("worker")
        begun.result(30)
        if verb == "killjob":
            stub.WaitJob(messages.WaitJobRequest(job="job"))
    demand(world.stasis("ps", "-a", "--json").json()["jobs"] == [], "it is not deleted")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for ident, verb in ids:
        said = [line for line in lines if line.get("operation") == ident]
        demand([line["message"] for line in said] == ["begun", "ended"], f"{said}")
        demand(said[-1]["outcome"] == "done" and said[-1]["verb"] == verb and said[-1]["target"] == "job", f"{said}")
    metrics = urllib.request.urlopen(f"http://{house.status()['metrics']}/metrics", timeout=30).read().decode()
    for verb, outcome in (("killjob", "failed"), ("killjob", "done"), ("deletejob", "done")):
        counted = re.search(rf'stasis_operations_total{{verb="{verb}",outcome="{outcome}",[^}}]*}} 1', metrics)
        demand(counted, f"{verb} {outcome} is not counted:\n" +
               "\n".join(line for line in metrics.splitlines() if line.startswith("stasis_operations_total")))
    # While another is under way nothing ends, but neither is anything begun.
    second = house.counter("second")
    house.hold("worker")
    last = stub.KillJob.future(messages.KillJobRequest(job="second", signal=9))
    wait_until(house.workers, 10, "no worker is started")
    drain = world.begin("daemon", "drain")
    wait_until(lambda: house.status()["draining"], 10, "it does not drain")
    for method, request in ((stub.KillJob, messages.KillJobRequest(job="second", signal=9)),
                            (stub.DeleteJob, messages.DeleteJobRequest(job="second"))):
        try:
            method(request, timeout=30)
            demand(False, "it was begun")
        except grpc.RpcError as error:
            demand(error.code() == grpc.StatusCode.UNAVAILABLE and "drained" in error.details(), f"{error}")
    house.let_go("worker")
    last.result(30)
    demand(drain.wait().code == 0, f"{drain}")
    house.await_end()
    second.await_gone()
    world.stasis("delete", "second")
    house.leave_workers()


if __name__ == "__main__":
    sys.exit(main([environment_is_not_shown, ending_jobs_are_operations]))
