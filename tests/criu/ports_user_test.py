"""Like ports_test.py, for a user who may dump and restore but cannot make the kernel drop connections: the restore
waits, or reports how long it would have to wait."""

import pathlib
import re
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "security"))

import users  # noqa: E402 - adds tests/stage to the path
from ports_test import FIN_WAIT_2, end, expect_said, remembered, start  # noqa: E402
from users import ALICE, RESTORER, demand  # noqa: E402


def no_wait_past_the_deadline(new):
    """Returns at once if the deadline is earlier."""
    alice = new(ALICE, RESTORER)
    program = start(alice, "listener")
    port = program.port()
    program.dump()
    before = remembered(port)
    began = time.monotonic()
    program.restore(None, "--timeout", 5, expect=1)
    expect_said(alice, rf"127\.0\.0\.1:{port} .* held for another [0-9]+ s by [0-9]+ closed connections",
                "Everything is as it was", "by root")
    demand(time.monotonic() - began < 5, "it has waited")
    demand(remembered(port) == before > 0, "it has dropped some")
    alice.stasis("image", "verify", program.image)


def a_wait_is_cancelled(new):
    alice = new(ALICE, RESTORER)
    program = start(alice, "listener")
    program.dump()
    restore = alice.begin("restore", "job")
    alice.await_phase("ports")
    restore.process.send_signal(signal.SIGINT)
    restore.wait(30)
    demand(restore.code == 1 and "cancelled" in restore.err, f"{restore}")
    alice.stasis("image", "verify", program.image)


def waited_for(new):
    """A connection that the other side has not yet closed is kept too, for the machine's timeout."""
    with open("/proc/sys/net/ipv4/tcp_fin_timeout", "w") as file:
        file.write("4")
    alice = new(ALICE, RESTORER)
    program = start(alice, "outside")
    port = program.port()
    with socket.create_connection(("127.0.0.1", port)) as client:
        demand(client.recv(1) == b"", "the program does not close it")
        program.dump()
        demand(remembered(port, (FIN_WAIT_2,)) == 1, "the kernel keeps no closed connection")
        program.restore()
        said = alice.transcript(3)
        demand(re.search(rf"Waited [0-9.]+ s for port 127\.0\.0\.1:{port}", said),
               f"the message does not say that it waited:\n{said}")
    program.expect_running()
    end(program)


if __name__ == "__main__":
    sys.exit(users.main(no_wait_past_the_deadline, a_wait_is_cancelled, waited_for))
