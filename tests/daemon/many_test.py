"""many_test.py --build DIR [--only CASE]: many jobs and many concurrent callers. MANY_SECONDS=60
runs for a minute."""

import concurrent.futures
import os
import random
import sys
import threading
import time

from daemon_fixture import DaemonFixture, Program, demand, main, wait_until

LISTED = 200
LIST_S = 20.0  # Time limit for a list, which normally takes a small part of it. A busy test machine
               # may be slower.
JOBS, CLIENTS = 20, 50
SECONDS = float(os.environ.get("MANY_SECONDS", "6"))


def two_hundred_listed(fixture: DaemonFixture):
    messages, stubs = fixture.start().stubs()
    stub = stubs.StasisStub(fixture.channel())

    def run(number):
        stub.Run(messages.RunRequest(job=f"job{number}", argv=["/bin/sleep", "1000"], no_agent=True), timeout=120)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(LISTED)))
    taken = []
    for _ in range(5):
        began = time.monotonic()
        jobs = stub.ListJobs(messages.ListJobsRequest()).jobs
        taken.append(time.monotonic() - began)
        demand({job.id: job.state for job in jobs} == {f"job{n}": "running" for n in range(LISTED)}, "not all of them")
    print(f"{LISTED} jobs are listed in {min(taken) * 1000:.0f} ms (at most {max(taken) * 1000:.0f})")
    demand(min(taken) < LIST_S, f"they are listed in {min(taken):.2f} s")

    def end(number):
        stub.KillJob(messages.KillJobRequest(job=f"job{number}", signal=9), timeout=120)
        stub.WaitJob(messages.WaitJobRequest(job=f"job{number}"), timeout=120)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(end, range(LISTED)))


class Client(threading.Thread):
    """Suspends and resumes random jobs until told to stop."""

    def __init__(self, fixture, number, enough):
        super().__init__(daemon=True)
        self.messages, self.stubs = fixture.stubs()
        self.channel = fixture.channel()
        self.random, self.enough = random.Random(number), enough
        self.done, self.busy, self.wrong = 0, 0, []

    def run(self):
        import grpc
        stub = self.stubs.StasisStub(self.channel)
        while not self.enough.is_set():
            job = f"job{self.random.randrange(JOBS)}"
            suspend = self.random.random() < 0.5
            try:
                if suspend:
                    list(stub.Suspend(self.messages.SuspendRequest(target=job), timeout=120))
                else:
                    list(stub.Resume(self.messages.ResumeRequest(target=job), timeout=120))
                self.done += 1
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.ABORTED:
                    self.busy += 1
                else:
                    self.wrong.append(f"{'suspend' if suspend else 'resume'} {job}: {error.code().name} {error.details()}")
        self.channel.close()


def all_at_once(fixture: DaemonFixture):
    """The only errors are "busy", no call blocks forever, and every program has correct data at the
    end."""
    world = fixture.world
    world.set_gpu(1, "8G")
    fixture.start()
    jobs = [Program(world, f"job{number}", "counter", ["--memory", "1M"]).run() for number in range(JOBS)]
    enough = threading.Event()
    clients = [Client(fixture, number, enough) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    began = time.monotonic()

    def done():
        return sum(client.done for client in clients)

    # Runs for this time, or longer until a minimum has been done.
    wait_until(lambda: time.monotonic() - began > SECONDS and done() >= JOBS, SECONDS + 150, lambda: f"only {done()} were done")
    enough.set()
    for client in clients:
        client.join(150)
        demand(not client.is_alive(), "a client waits forever")
    wrong = [text for client in clients for text in client.wrong]
    busy = sum(client.busy for client in clients)
    print(f"{CLIENTS} clients, {JOBS} jobs, {SECONDS:.0f} s: {done()} done, {busy} times busy, {len(wrong)} failed")
    demand(not wrong, "\n".join(wrong[:5]))
    for job in jobs:
        world.stasis("resume", job.name)
        fixture.end(job)


if __name__ == "__main__":
    sys.exit(main([two_hundred_listed, all_at_once]))
