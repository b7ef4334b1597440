#!/usr/bin/env python3
"""The daemon's metrics: each value follows its cause, the page describes exactly the served
metrics, the alert rules use no others, and a scraper disturbs nothing."""
import os
import pathlib
import re
import signal
import socket
import sys
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "stage"))
import one_world  # noqa: E402
import processes  # noqa: E402
from exposition import Scrape  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

UID = os.getuid()


class Daemon:
    """A daemon with metrics; the commands of the test use it while it runs."""
    seen = set()  # metrics that had a value at any time, of any daemon

    def __init__(self, world, env=None):
        self.world = world
        world.env["STASIS_SOCKET"] = str(world.folder / "socket")
        world.stasis("daemon", "start", env={"STASIS_METRICS_LISTEN": "127.0.0.1:0", **(env or {})})
        self.address = world.stasis("daemon", "status", "--json").json()["metrics"]

    def get(self, path="/metrics"):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            demand(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), str(answer.headers))
            return answer.read().decode()

    def scrape(self):
        scrape = Scrape(self.get())
        self.seen |= {name for name, family in scrape.families.items() if family.samples}
        return scrape

    def scrape_until(self, what, **labels):
        """Scrapes until there is a value. Metrics of users are up to some seconds old."""
        found = []

        def there():
            found[:] = [self.scrape()]
            return found[0].value(what, **labels)
        wait_until(there, 60, lambda: f"{what}{labels} is not there in:\n{self.get()}")
        return found[0]

    def drain(self):
        self.world.stasis("daemon", "drain")
        self.world.await_daemons_end()
        del self.world.env["STASIS_SOCKET"]


def table():
    """Returns name -> (type, labels) from docs/metrics.md."""
    rows = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        found = re.match(r"\| `(stasis_\w+)` \| (\w+) \| ([\w, ]*) ?\|", line)
        if found:
            name, kind, labels = found.groups()
            rows[name] = (kind, set(filter(None, labels.replace(" ", "").split(","))))
    return rows


def operations(world, daemon):
    begun = daemon.scrape_until("stasis_arena_room_bytes", uid=UID)
    demand(begun.value("stasis_operations_total", verb="suspend", outcome="done", code="OK", domain="") is None, "before")
    demand(begun.value("stasis_build_info", version=world.stasis("version", "--json").json()["stasis"]) == 1, "version")
    demand(begun.value("stasis_suspended_bytes", uid=UID) == 0, "nothing is suspended")
    job = Program(world, "job", "counter", ["--memory", "24M"]).run()
    world.stasis("suspend", "job", env={"STASIS_HELPER_IDLE_S": "30"})
    now = daemon.scrape_until("stasis_arena_bytes", uid=UID, state="data")
    demand(now.value("stasis_operations_total", verb="suspend", outcome="done", code="OK", domain="") == 1, "suspends")
    demand(now.value("stasis_operation_seconds_count", verb="suspend", outcome="done") == 1, "duration")
    demand(now.value("stasis_phase_seconds_count", verb="suspend", phase="data-save") == 1, "phases")
    demand(now.value("stasis_bytes_total", verb="suspend", path="data_plane") >= 24 << 20, "bytes")
    demand(now.value("stasis_bytes_total", verb="suspend", path="driver") > 0, "the driver's bytes")
    demand(now.value("stasis_suspended_processes", uid=UID) == 1, "suspended processes")
    demand(now.value("stasis_suspended_bytes", uid=UID) >= 24 << 20, "suspended bytes")
    demand(0 <= now.value("stasis_suspended_oldest_seconds", uid=UID) < 100, "suspended for")
    demand(now.value("stasis_arena_bytes", uid=UID, state="data") >= 24 << 20, "arena")
    demand(now.value("stasis_jobs", uid=UID, state="running") == 1, "jobs")
    demand(now.value("stasis_movers", uid=UID) == 1, "movers")
    demand(now.value("stasis_calls_total", method="Suspend", code="OK") == 1, "calls")
    demand(now.value("stasis_usage_age_seconds", uid=UID) < 60, "age")
    world.stasis("resume", "job", env={"STASIS_HELPER_IDLE_S": "0"})
    job.expect_running()
    world.stasis("dump", "job", "--leave-running", "--name", "one")
    job.expect_running()
    world.stasis("suspend", "nobody", expect=3)
    now = daemon.scrape()
    demand(now.value("stasis_bytes_total", verb="dump", path="written") > 0, "written")
    demand(now.value("stasis_pause_seconds_count", verb="dump") == 1, "pause")
    demand(now.value("stasis_operations_total", verb="suspend", outcome="failed", code="NOT_FOUND", domain="stasis") == 1,
           f"a failure without its cause:\n{daemon.get()}")
    world.stasis("arena", "free", env={"STASIS_SOCKET": ""})
    return job


def repositories(world, daemon):
    """Push, pull and gc through the service, and a restore of an image in a repository."""
    import grpc
    sys.path.insert(0, str(world.build / "python"))
    from stasis.v1 import stasis_pb2 as pb
    from stasis.v1 import stasis_pb2_grpc
    world.stasis("key", "create")
    (world.folder / "repository").mkdir()
    world.stasis("repo", "add", "fleet", world.folder / "repository", "--trust")
    before = Scrape(daemon.get())
    demand(not before.families["stasis_repository_requests_total"].samples, "requests without an operation")
    stub = stasis_pb2_grpc.StasisStub(grpc.insecure_channel(f"unix:{world.env['STASIS_SOCKET']}"))
    fleet = pb.RepositoryChoice(name="fleet")

    def last(events):
        return list(events)[-1].result.transfer

    def series(operation):
        now = daemon.scrape()
        demand(now.value("stasis_repository_seconds_count", operation=operation) >= 1, f"no duration of a {operation}")
        names = {"requests": "requests", "retries": "retries", "known": "deduplicated_bytes"}
        found = {key: now.value(f"stasis_repository_{name}_total", operation=operation) for key, name in names.items()}
        for direction in ("sent", "received"):
            found[direction] = now.value("stasis_repository_bytes_total", operation=operation, direction=direction)
        return found

    def compare(operation, *transfers):
        expected = {"requests": sum(t.requests for t in transfers), "retries": 0,
                    "known": sum(t.known_bytes for t in transfers), "sent": sum(t.sent_bytes for t in transfers),
                    "received": sum(t.received_bytes for t in transfers)}
        demand(series(operation) == expected, f"{operation}: {series(operation)}, not {expected}")

    store = str(world.folder / "pulled")
    first = last(stub.PushImage(pb.PushImageRequest(image="one", repository=fleet)))
    again = last(stub.PushImage(pb.PushImageRequest(image="one", repository=fleet, name="two")))
    demand(first.sent_bytes > 1 << 20 and again.known_bytes > 1 << 20, f"the pushes: {first} {again}")
    compare("push", first, again)
    compare("pull", last(stub.PullImage(pb.PullImageRequest(image="one", repository=fleet, store=store))))
    gc = stub.CollectGarbage(pb.CollectGarbageRequest(repository=fleet))
    demand(gc.requests > 0 and series("gc")["requests"] == gc.requests, f"gc: {series('gc')}, not {gc}")
    stub.CollectGarbage(pb.CollectGarbageRequest())
    demand(series("gc")["requests"] == gc.requests, "the gc of a local store was counted")
    # Failures are in the metrics of all operations.
    try:
        last(stub.PushImage(pb.PushImageRequest(image="none", repository=fleet)))
        demand(False, "an image that does not exist was pushed")
    except grpc.RpcError as error:
        demand(error.code() == grpc.StatusCode.NOT_FOUND, f"{error}")
    now = daemon.scrape()
    demand(now.value("stasis_operations_total", verb="pushimage", outcome="failed", code="NOT_FOUND", domain="image") == 1,
           f"the failed push:\n{daemon.get()}")
    compare("push", first, again)


def restore_of_a_repository(world, daemon, job):
    """The command's account and the metrics agree."""
    world.stasis("suspend", "job")
    world.stasis("dump", "job", "--name", "last", "--to", "fleet")
    restored = world.stasis("restore", "fleet/last", "--job", "job", "--json").json()["transfer"]
    now = daemon.scrape()
    demand(now.value("stasis_repository_bytes_total", operation="restore", direction="received")
           == restored["received_bytes"] > 1 << 20, f"{restored}\n{daemon.get()}")
    demand(now.value("stasis_repository_requests_total", operation="restore") == restored["requests"], f"{restored}")
    demand(now.value("stasis_repository_seconds_count", operation="restore") == 1, "the duration of the restore")
    job.expect_running()


def workers_at(method):
    def works(pid):
        try:
            request = pathlib.Path(f"/proc/{pid}/fd/0").read_bytes()
        except OSError:
            return False
        return request.startswith(b"\n" + bytes([len(method)]) + method.encode())
    return [pid for pid in processes.called("stasis-worker") if works(pid)]


def slow_and_killed(world, daemon, job):
    """The daemon's environment makes a phase hang: tests an operation in progress, and a killed
    worker."""
    begun = world.begin("resume", "job")
    wait_until(lambda: daemon.scrape().value("stasis_operations_under_way", verb="resume") == 1, 60, "not under way")
    # The operation is in progress before its worker has started.
    worker, = wait_until(lambda: workers_at("Resume"), 60, "no worker")
    os.kill(worker, signal.SIGKILL)
    demand(begun.wait().code == 6, str(begun))
    now = daemon.scrape()
    demand(now.value("stasis_workers_lost_total", method="Resume") == 1, "a lost worker")
    demand(now.value("stasis_operations_total", verb="resume", outcome="not_undone", code="INTERNAL", domain="stasis") == 1,
           "not undone")
    demand(now.value("stasis_operations_under_way", verb="resume") is None, "still under way")


def page(text):
    served, described = Scrape(text).families, table()
    demand(set(served) == set(described), f"not on both sides: {set(served) ^ set(described)}")
    for name, family in served.items():
        kind, labels = described[name]
        demand(family.kind == kind, f"{name} is a {family.kind}")
        demand(not family.samples or family.label_names() == labels, f"{name} has {family.label_names()}, not {labels}")


def rules(text):
    file = ROOT / "packaging" / "prometheus" / "stasis.rules.yml"
    served = Scrape(text).families
    names = {family + suffix for family in served for suffix in
             (("_bucket", "_sum", "_count") if served[family].kind == "histogram" else ("",))} | {"up"}
    try:
        import yaml
    except ImportError:
        expressions = re.findall(r"^ +expr: (.*)$", file.read_text(), re.M)
    else:
        alerts = [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
        for alert in alerts:
            demand(set(alert) - {"for"} == {"alert", "expr", "labels", "annotations"}, f"{alert}")
        demand(len({alert["alert"] for alert in alerts}) == len(alerts) >= 5, "alerts")
        expressions = [alert["expr"] for alert in alerts]
    demand(len(expressions) >= 5, f"{expressions}")
    for expression in expressions:
        asked = set(re.findall(r"\b(stasis_\w+|up)\b", expression))
        demand(asked and asked <= names, f"{asked - names} of {expression!r} is not served")
        for family, selector in re.findall(r"\b(stasis_\w+?)(?:_bucket)?\{(.*?)\}", expression):
            labels = set(re.findall(r"(\w+)[=!]", selector))
            demand(labels <= table()[family][1], f"{expression!r}: {family} has no {labels}")


def strangers(daemon):
    host, port = daemon.address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    for s in silent[:25]:
        try:
            s.sendall(b"\x00" * 20000)
        except OSError:
            pass  # closed, as intended
    daemon.scrape()  # within the time limit
    for s in silent:
        s.close()
    for path, code in (("/", 404), ("/metrics/x", 404)):
        try:
            daemon.get(path)
            demand(False, f"{path} was served")
        except urllib.error.HTTPError as error:
            demand(error.code == code, f"{path}: {error}")


def sharing(world, daemon):
    world.stasis("run", "--share", "--job", "sharing", "--", "sleep", "1000")
    names = {name for name in table() if name.startswith("stasis_share_")}
    wait_until(lambda: names <= {name for name, family in daemon.scrape().families.items() if family.samples}, 60,
               daemon.get)
    world.stasis("kill", "sharing", "-s", "KILL")
    world.stasis("wait", "sharing", expect=137)
    world.stasis("delete", "sharing")


def run(world):
    # Without the setting there is no listener.
    world.env["STASIS_SOCKET"] = str(world.folder / "socket")
    world.stasis("daemon", "start")
    demand(world.stasis("daemon", "status", "--json").json()["metrics"] == "", "metrics are served without the setting")
    world.stasis("daemon", "drain")
    world.await_daemons_end()

    daemon = Daemon(world)
    job = operations(world, daemon)
    repositories(world, daemon)
    restore_of_a_repository(world, daemon, job)
    sharing(world, daemon)
    strangers(daemon)
    rules(daemon.get())
    page(daemon.get())
    daemon.drain()

    world.stasis("suspend", "job")
    daemon = Daemon(world, {"STASIS_FAULT": "data-load:before:hang"})
    slow_and_killed(world, daemon, job)
    page(daemon.get())
    missing = set(table()) - daemon.seen
    demand(missing == {"stasis_calls_refused_total"}, f"never seen with a value: {missing}")
    # The port is in use: the error names it, and the daemon does not start.
    world.stasis("daemon", "start", expect=1, env={"STASIS_SOCKET": str(world.folder / "other"),
                                                   "STASIS_METRICS_LISTEN": daemon.address})
    demand(f"metrics.listen {daemon.address}" in world.last.err, str(world.last))
    daemon.drain()
    world.stasis("recover")
    world.stasis("resume", "job", expect=(0, 7))
    job.expect_running()
    job.finish()


sys.exit(one_world.main(run, env={"STASIS_DAEMON_LOG_LEVEL": "debug"}))
