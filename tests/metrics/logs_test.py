#!/usr/bin/env python3
"""The logs: every line is JSON, one id finds everything about an operation, the log continues
without the daemon, and it contains nothing of a program's environment or arguments."""
import contextlib
import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import one_world  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

ID = re.compile(r"[0-9a-f]{16}$")
SECRET = "s3cr3t-that-nobody-else-may-see"


def lines(file):
    read = []
    for line in file.read_text().split("\n")[:-1]:  # an incomplete last line is still being written
        try:
            read.append(json.loads(line))
        except ValueError:
            demand(False, f"no JSON: {line!r}")
        demand(list(read[-1])[:5] == ["time", "level", "program", "pid", "message"], f"{line}")
        demand(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", read[-1]["time"]), f"{line}")
    return read


def of(file, **fields):
    return [line for line in lines(file) if all(line.get(k) == v for k, v in fields.items())]


def environments(variable):
    """Returns the names of processes that have this environment variable with this value."""
    found = set()
    for pid in processes.all_pids():
        if variable.encode() in (processes.told(pid, "environ") or b"").split(b"\0"):
            found.add((processes.stat(pid) or ("gone",))[0])
    return found


def opened(pid):
    """Returns the files that the process has open."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(file))
    return found


def start(world, level, env=None):
    log = world.folder / "log"
    world.env["STASIS_SOCKET"] = str(world.folder / "socket")
    world.stasis("daemon", "start", env={"STASIS_DAEMON_LOG_FILE": str(log), "STASIS_DAEMON_LOG_LEVEL": level, **(env or {})})
    return log


def drain(world):
    world.stasis("daemon", "drain")
    world.await_daemons_end()


def done(world, log):
    """Checks the log lines of a suspend that succeeds."""
    account = world.stasis("suspend", "job", "--json").json()
    demand(ID.match(account["operation"]), f"{account['operation']!r}")
    said = of(log, operation=account["operation"])
    for line in said:
        demand((line["verb"], line["target"], line["uid"]) == ("suspend", "job", os.getuid()), f"{line}")
    messages = [line["message"] for line in said]
    demand(messages[0] == "begun" and messages[-1] == "ended", f"{messages}")
    phases = [line["phase"] for line in said if line["message"] == "phase ended"]
    demand(sorted(phases) == sorted(p["name"] for p in account["phases"]), f"{phases}")
    last = said[-1]
    demand((last["outcome"], last["bytes"], last["level"]) == ("done", account["device_bytes"], "info"), f"{last}")
    demand(0 < last["seconds"] < 100 and last["target_pid"] == account["pid"], f"{last}")
    world.stasis("resume", "job")
    world.stasis("ps")
    demand(len(of(log, message="ended", outcome="done")) == 2, "calls that change nothing are in the log")


def failed(world, log):
    name = "no\"body\\\n{"
    world.stasis("suspend", name, expect=(2, 3))
    ended = of(log, message="ended", target=name)
    demand(len(ended) == 1 and ended[0]["outcome"] == "failed" and ended[0]["level"] == "warn", f"{ended}")
    demand(ended[0]["code"] in ("NOT_FOUND", "INVALID_ARGUMENT") and ended[0]["domain"] in ("stasis", "usage")
           and ended[0]["error"], f"{ended}")


def one_id(world, log):
    """Journal, account and helpers of a hanging operation; the daemon is killed; the log continues;
    recover names the operation."""
    begun = world.begin("suspend", "job", "--timeout", "10")
    world.await_phase("gpu-lock")
    status = world.stasis("daemon", "status", "--json").json()
    demand([o["verb"] for o in status["operations"]] == ["suspend"], f"{status}")
    ident = status["operations"][0]["id"]
    entry = next(world.journal.glob("*.journal")).read_text()
    demand(json.loads(entry.splitlines()[0])["operation"] == ident, entry)
    wait_until(lambda: environments(f"STASIS_OPERATION={ident}") == {"stasis-device-h", "stasis-mover"}, 60,
               lambda: f"{environments(f'STASIS_OPERATION={ident}')}")
    worker = of(log, operation=ident)[0]["pid"]
    demand(processes.stat(worker)[0] == "stasis-worker", f"{worker}")
    for task in pathlib.Path(f"/proc/{worker}/task").glob("*/children"):
        for child in task.read_text().split():
            demand(str(log) not in opened(child), f"a helper has the log: {opened(child)}")
    os.kill(status["pid"], signal.SIGKILL)
    demand(begun.wait().code == 6, str(begun))
    wait_until(lambda: world.reap() or of(log, operation=ident, message="ended"), 60, "the log ends with the daemon")
    ended = of(log, operation=ident)[-1]
    demand(ended["outcome"] == "failed" and ended["code"] == "DEADLINE_EXCEEDED", f"{ended}")
    return ident


def cut_off(world, log):
    begun = world.begin("suspend", "job")
    world.await_phase("gpu-lock")
    ident = world.stasis("daemon", "status", "--json").json()["operations"][0]["id"]
    os.kill(of(log, operation=ident)[0]["pid"], signal.SIGKILL)
    demand(begun.wait().code == 6, str(begun))
    lost = of(log, operation=ident, message="ended")
    demand([(line["outcome"], line["program"], line["level"]) for line in lost] == [("lost", "stasisd", "error")], f"{lost}")
    recovered = world.stasis("recover", "--json").json()["recovered"]
    demand([(r["operation"], r["ok"]) for r in recovered] == [(ident, True)], f"{recovered}")
    said = of(log, message="recover", cut_off=ident)
    demand(len(said) == 1 and said[0]["verb"] == "recover" and said[0]["cut_off_verb"] == "suspend", f"{said}")


def without_daemon(world):
    socket = world.env.pop("STASIS_SOCKET")
    account = world.stasis("suspend", "job", "--json", "--no-daemon").json()
    demand(ID.match(account["operation"]), f"{account['operation']!r}")
    other = world.stasis("resume", "job", "--json", "--no-daemon", env={"STASIS_OPERATION": "0" * 16}).json()["operation"]
    demand(ID.match(other) and other not in (account["operation"], "0" * 16), f"{other!r}")
    world.env["STASIS_SOCKET"] = socket


def run(world):
    job = Program(world, "job", "counter", ["--memory", "8M"])
    job.words = ["bash", "-c", f"exec {' '.join(job.words)}", f"{SECRET}-argv"]
    job.run(env={"SECRET": f"{SECRET}-env"})
    log = start(world, "info", {"PASSWORD": f"{SECRET}-daemon"})
    done(world, log)
    failed(world, log)
    demand([line["message"] for line in lines(log)][0] == "ready", "the first line")
    drain(world)

    log = start(world, "debug", {"STASIS_FAULT": "gpu-lock:before:hang"})
    world.stasis("ps", env={"PASSWORD": f"{SECRET}-client"})
    demand(of(log, verb="listjobs", message="ended", level="debug"), "the debug level logs no more")
    first = one_id(world, log)
    job.expect_running()
    log = start(world, "debug", {"STASIS_FAULT": "gpu-lock:before:hang"})
    cut_off(world, log)
    job.expect_running()
    world.stasis("dump", "job", "--name", "x", "-d", "/proc/nowhere/store", expect=None)
    world.stasis("kill", "job", "-s", "CONT")
    drain(world)
    without_daemon(world)
    job.expect_running()

    text = log.read_text()
    demand(first in text and SECRET not in text, "\n".join(line for line in text.splitlines() if SECRET in line))
    demand(stat_mode(log) == 0o600, "other users can read the log")
    # An invalid log file is rejected before anything is started.
    world.stasis("daemon", "start", expect=2, env={"STASIS_DAEMON_LOG_FILE": "/dev/null"})
    demand("/dev/null is not a regular file" in world.last.err, str(world.last))
    job.finish()


def stat_mode(path):
    return path.stat().st_mode & 0o777


sys.exit(one_world.main(run))
