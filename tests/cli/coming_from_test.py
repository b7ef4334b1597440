#!/usr/bin/env python3
"""Tests each line of docs/coming-from.md: every command does what the page says."""
import pathlib
import re
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "coming-from.md"
ROW = re.compile(r"^\| (.+?) \| (?:`(.+?)` )?\| (?:(.*?) )?\|$")
# The commands of the other tools; a missing row is an error.
THEIRS = """
cedana plugin install|cedana plugin list|cedana daemon start|cedana daemon check|cedana check --full|cedana run process
cedana run runc|cedana exec|cedana manage|cedana job list|cedana job inspect|cedana job attach|cedana query|cedana freeze
cedana unfreeze|cedana dump job|cedana dump process|cedana restore job|cedana restore process|cedana job kill
cedana job delete|cedana job checkpoint list|cedana job checkpoint inspect|cedana k8s|cedana slurm|dump-vm|cedana version
cedana completion|--config|--address|--attachable|-o out.log|--compression|--streams|--leave-running|--tcp-established
--skip-in-flight|--file-locks|--external|--shell-job|--link-remap|--criu-opts|--result-file|--tcp-close|--leave-stopped
--gpu-id|cr_client -i|cr_client -c|cr_client -r|-m PARENT|EXPORT_FILE_PATH|AMD_CKPT_DIR|LD_PRELOAD|cu_check state
cu_check lock|cu_check checkpoint|cu_check restore|cu_check unlock|criu dump|criu restore|--toggle|--get-state
--get-restore-tid|--action lock|--action unlock
""".replace("\n", "|").strip("|").split("|")


def rows():
    found = []
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| ") or re.match(r"\| [\w-]+ \| Stasis \|", line):
            continue
        match = ROW.match(line)
        demand(match, f"not a row of three columns: {line}")
        found.append((match[1], match[2]))
    return found


def all_are_mapped(_):
    left = " ".join(theirs for theirs, _ in rows()) + PAGE.read_text()
    for command in THEIRS:
        demand(command in left, f"{command} is not mapped")


def serving(world):
    """Returns the process of the most recently started running job, or None."""
    running = [job for job in world.stasis("ps", "--json").json()["jobs"] if job["pid"]]
    return max(running, key=lambda job: job["created_ms"])["pid"] if running else None


def stays(world, words):
    """The command shows the output, and ends when its terminal closes."""
    command = world.begin(*words)
    wait_until(lambda: "READY" in command.out, 60, lambda: f"it shows nothing: {command}")
    command.process.send_signal(signal.SIGHUP)
    demand(command.wait().code == 0, f"{command}")


def every_line(world):
    serve = world.folder / "serve"
    serve.write_text(f"#!/bin/sh\nexec {world.workloads}/vector --memory 8M --interval 10\n")
    serve.chmod(0o755)
    for _, ours in rows():
        if ours is None:
            continue
        if ours.startswith("stasis attach"):
            stays(world, ours.split()[1:])
            continue
        pid = serving(world) if "$PID" in ours else ""
        demand(pid is not None, f"nothing runs before `{ours}`")
        # The result of checking the machine depends on the machine.
        either = " || [ $? = 5 ]" if re.match(r"stasis (daemon )?check$", ours) else ""
        world.shell(ours + either, env={"PID": str(pid)})
        if "-- ./serve" in ours:
            job = re.search(r"--(?:jid|job) (\w+)", ours)[1]
            log = world.state / "data/jobs" / job / "log"
            wait_until(lambda log=log: log.exists() and "READY" in log.read_text(), 60, f"{job} is not ready")
    for job in world.stasis("ps", "--json").json()["jobs"]:
        world.stasis("kill", job["id"], "-s", "KILL")


def unclear(world):
    """Commands similar to those of other tools that are errors."""
    for words in (("dump", "runc", "x"), ("dump", "job", "12"), ("dump", "process", "llama"), ("restore", "a", "b")):
        world.stasis(*words, expect=2)
        demand("is neither a job nor a process" in world.last.err, str(world.last))
    world.stasis("plugin", expect=2)


def run(world):
    all_are_mapped(world)
    unclear(world)
    every_line(world)
    world.stasis("daemon", "drain")
    wait_until(lambda: world.reap() or not world.daemons(), 60, "the daemon does not end")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
