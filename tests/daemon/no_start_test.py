"""no_start_test.py --build DIR [--only CASE] [--all]: no more threads and processes can be started, either
from the Nth start on or for only the Nth, in the daemon or in a command that uses it, for each N
(without --all for every third) until all starts succeed. Every command gets an answer, the daemon
lists no finished operation, and it can be drained."""

import signal
import sys

from daemon_fixture import DaemonFixture, demand, main, processes, wait_until

# An upper bound for the starts in the daemon or a command.
MOST_STARTS = 80
# Without --all, every STEP-th start fails.
STEP = 3
# An answer or error must arrive within this time, even if no thread can be started.
ANSWER_S = 60


def failing(fixture, program, number, how_long):
    failed_starts(fixture).unlink(missing_ok=True)
    return {"LD_PRELOAD": str(fixture.world.build / "tests" / "libfailing_start.so"),
            "FAILING_START": f"{program}:{number}{how_long}", "FAILING_START_NOTE": str(failed_starts(fixture))}


def failed_starts(fixture):
    """A file that exists once a start has failed."""
    return fixture.world.folder / "failed-starts"


def asked(fixture, number, *words, env=None):
    command = fixture.world.begin(*words, env=env).wait(ANSWER_S)
    fixture.world.reap()
    demand(command.code in (0, 1, 4, 5, 6, 7), lambda: f"start {number} failed, exit code {command.code}:\n{command}")
    demand(command.code == 0 or command.err, lambda: f"the message has no reason: {command}")
    print(f"start {number}: exit {command.code} of {' '.join(words)}: {command.err.splitlines()[:1]}")
    return command


def numbers(fixture):
    return range(1, MOST_STARTS, 1 if fixture.world.every else STEP)


def each_of_the_daemon(fixture: DaemonFixture, how_long):
    world = fixture.world
    job = fixture.counter()
    for number in numbers(fixture):
        begun = asked(fixture, number, "daemon", "start", "--json", env=failing(fixture, "stasisd", number, how_long))
        if begun.code != 0:
            wait_until(lambda: world.reap() or not world.daemons(), 60, "a daemon that did not start stays")
            continue
        fixture.pid = begun.json()["pid"]
        asked(fixture, number, "ps")
        asked(fixture, number, "suspend", job.name)
        asked(fixture, number, "resume", job.name)
        # A failed operation is no longer in progress.
        status = asked(fixture, number, "daemon", "status", "--json")
        demand(status.code != 0 or status.json()["operations"] == [], lambda: f"start {number} failed: {status}")
        drained = asked(fixture, number, "daemon", "drain")
        if drained.code == 0:
            fixture.await_end()
        else:
            fixture.kill(signal.SIGTERM)
        world.stasis("recover", "--no-daemon")
        if job.gpu_state() != "running":
            world.stasis("resume", job.name)
        job.expect_running()
        if not failed_starts(fixture).exists():
            demand(drained.code == 0, lambda: f"nothing failed: {drained}")
            break
    else:
        demand(False, f"{MOST_STARTS} starts and more")
    job.kill()
    world.stasis("wait", job.name, expect=None)
    world.stasis("delete", job.name)


def from_then_on(fixture: DaemonFixture):
    each_of_the_daemon(fixture, "+")


def once(fixture: DaemonFixture):
    each_of_the_daemon(fixture, "")


def in_the_command(fixture: DaemonFixture):
    fixture.start()
    job = fixture.counter()
    for number in numbers(fixture):
        all_started = True
        for verb in ("suspend", "resume"):
            command = asked(fixture, number, verb, job.name, env=failing(fixture, "stasis", number, "+"))
            all_started = all_started and not failed_starts(fixture).exists()
        fixture.await_no_operation()
        if all_started:
            demand(command.code == 0, lambda: f"nothing failed: {command}")
            break
        if job.gpu_state() != "running":
            fixture.world.stasis("resume", job.name)
        job.expect_running()
    else:
        demand(False, f"{MOST_STARTS} starts and more")
    fixture.end(job)


if __name__ == "__main__":
    sys.exit(main([from_then_on, once, in_the_command]))
