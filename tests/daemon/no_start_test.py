"""no_start_test.py --build DIR [--only CASE]: no more threads and processes can be started, either
from the Nth start on or for only the Nth, in the daemon or in a command that uses it, for each N
until all starts succeed. Every command gets an answer, the daemon lists no finished operation, and
it can be drained."""

import signal
import sys

from house import House, demand, main, processes, wait_until

# An upper bound for the starts in the daemon or a command.
MOST_STARTS = 80
# An answer or error must arrive within this time, even if no thread can be started.
ANSWER_S = 60


def failing(house, program, number, how_long):
    failed_starts(house).unlink(missing_ok=True)
    return {"LD_PRELOAD": str(house.world.build / "tests" / "libfailing_start.so"),
            "FAILING_START": f"{program}:{number}{how_long}", "FAILING_START_NOTE": str(failed_starts(house))}


def failed_starts(house):
    """A file that exists once a start has failed."""
    return house.world.folder / "failed-starts"


def asked(house, number, *words, env=None):
    command = house.world.begin(*words, env=env).wait(ANSWER_S)
    house.world.reap()
    demand(command.code in (0, 1, 4, 5, 6, 7), lambda: f"start {number} failed, exit code {command.code}:\n{command}")
    demand(command.code == 0 or command.err, lambda: f"the message has no reason: {command}")
    print(f"start {number}: exit {command.code} of {' '.join(words)}: {command.err.splitlines()[:1]}")
    return command


def each_of_the_daemon(house: House, how_long):
    world = house.world
    job = house.counter()
    for number in range(1, MOST_STARTS):
        begun = asked(house, number, "daemon", "start", "--json", env=failing(house, "stasisd", number, how_long))
        if begun.code != 0:
            wait_until(lambda: world.reap() or not world.daemons(), 60, "a daemon that did not start stays")
            continue
        house.pid = begun.json()["pid"]
        asked(house, number, "ps")
        asked(house, number, "suspend", job.name)
        asked(house, number, "resume", job.name)
        # A failed operation is no longer in progress.
        status = asked(house, number, "daemon", "status", "--json")
        demand(status.code != 0 or status.json()["operations"] == [], lambda: f"start {number} failed: {status}")
        drained = asked(house, number, "daemon", "drain")
        if drained.code == 0:
            house.await_end()
        else:
            house.kill(signal.SIGTERM)
        world.stasis("recover", "--no-daemon")
        if job.gpu_state() != "running":
            world.stasis("resume", job.name)
        job.expect_running()
        if not failed_starts(house).exists():
            demand(drained.code == 0, lambda: f"nothing failed: {drained}")
            break
    else:
        demand(False, f"{MOST_STARTS} starts and more")
    job.kill()
    world.stasis("wait", job.name, expect=None)
    world.stasis("delete", job.name)


def from_then_on(house: House):
    each_of_the_daemon(house, "+")


def once(house: House):
    each_of_the_daemon(house, "")


def in_the_command(house: House):
    house.start()
    job = house.counter()
    for number in range(1, MOST_STARTS):
        all_started = True
        for verb in ("suspend", "resume"):
            command = asked(house, number, verb, job.name, env=failing(house, "stasis", number, "+"))
            all_started = all_started and not failed_starts(house).exists()
        house.await_no_operation()
        if all_started:
            demand(command.code == 0, lambda: f"nothing failed: {command}")
            break
        if job.gpu_state() != "running":
            house.world.stasis("resume", job.name)
        job.expect_running()
    else:
        demand(False, f"{MOST_STARTS} starts and more")
    house.end(job)


if __name__ == "__main__":
    sys.exit(main([from_then_on, once, in_the_command]))
