"""A program gets its ports back even if it is restored within the minute in which the kernel keeps
its closed connections."""

import os
import pathlib
import re
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

PORTS = pathlib.Path(__file__).resolve().parent / "ports.py"
FIN_WAIT_2, TIME_WAIT = "05", "06"  # as in /proc


def start(world, form):
    return Program(world, "job", "/usr/bin/python3", [PORTS, form]).run()


def remembered(port, states=(TIME_WAIT,)):
    """Counts the program's closed connections that the kernel keeps, from /proc."""
    count = 0
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                count += words[3] in states and int(words[1].rpartition(":")[2], 16) == port
    return count


def close_more(program):
    os.kill(program.pid, signal.SIGHUP)
    program.await_output(r"^CLOSED$")


def end(program):
    program.finish()
    program.world.stasis("delete", "job")


def expect_said(world, *patterns):
    for pattern in patterns:
        demand(re.search(pattern, world.last.err), f"the message lacks '{pattern}': {world.last}")


def restored_at_once(world, form, *options):
    """Dumps and restores twice, because connections closed after a restore are kept in the same way."""
    program = start(world, form)
    port, listens = program.port(), form not in ("accepted", "bound")
    for _ in range(2 if listens else 1):
        program.dump(*options)
        demand(remembered(port) > 0, "the kernel keeps no closed connection, so this tests nothing")
        world.stasis("restore", "job", "--dry-run")
        demand(remembered(port) > 0, "--dry-run has changed something")
        program.restore()
        program.expect_running()
        if listens:
            close_more(program)
    end(program)


def restored_after_a_crash(world):
    """The restored connections have the same addresses and ports as those that ended with the
    program."""
    program = start(world, "kept")
    for _ in range(2):
        program.dump("--tcp=keep", "--leave-running")
        close_more(program)
        program.kill()
        demand(remembered(program.port()) > 0, "the kernel keeps no closed connection, so this tests nothing")
        program.restore()
        program.expect_running()
    end(program)


def restored_after_a_killed_restore(world):
    """A restore that made the kernel drop connections and then failed."""
    program = start(world, "listener")
    program.dump()
    program.restore(expect=-9, env={"STASIS_FAULT": "ports:after:die"})
    program.restore()
    program.expect_running()
    end(program)


def listening(port):
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taker.bind(("127.0.0.1", port))
    taker.listen()
    return taker


def the_owner_of_a_port_is_named(world):
    """Another program has the port meanwhile; the restore succeeds after it has released the port."""
    program = start(world, "reuse")
    program.dump()
    taker = listening(program.port())
    program.restore(expect=7)
    expect_said(world, rf"127\.0\.0\.1:{program.port()} .* in use by process {os.getpid()} \(python3")
    world.stasis("image", "verify", program.image)
    taker.close()
    program.restore()
    program.expect_running()
    end(program)


def closed_connections_of_an_owner_stay(world):
    """If the restore is rejected, closed connections of the port's current owner are still kept."""
    program = start(world, "reuse")
    program.dump()
    taker = listening(program.port())
    closed = 20
    for _ in range(closed):
        with socket.create_connection(("127.0.0.1", program.port())):
            taker.accept()[0].close()
    demand(remembered(program.port()) >= closed, "the kernel keeps no closed connection, so this tests nothing")
    program.restore(expect=7)
    expect_said(world, rf"in use by process {os.getpid()} ")
    demand(remembered(program.port()) >= closed,
           f"{remembered(program.port())} of {closed} are left of what the other had closed")
    taker.close()
    program.restore()
    program.expect_running()
    end(program)


CASES = [
    *[(restored_at_once, form, "--tcp=keep") for form in ("reuse", "listener", "any", "any6", "kept", "accepted", "bound", "gpu")],
    (restored_at_once, "cut", "--tcp=close"),
    (restored_after_a_crash,),
    (restored_after_a_killed_restore,),
    (the_owner_of_a_port_is_named,),
    (closed_connections_of_an_owner_stay,),
]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
