"""CRIU's block of the packets of kept TCP connections: it does not stay after a dump, and a restore does not need that it has
stayed."""

import os
import pathlib
import shutil
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
from nftables import criu_rules, criu_tables, run  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

UNREAD = pathlib.Path(__file__).resolve().parent / "unread.py"


def start(world, *args):
    return Program(world, "job", "/usr/bin/python3", [UNREAD, *args]).run()


def expect_tables(count, when):
    demand(len(criu_tables()) == count and not criu_rules(), lambda: f"{when}: {criu_tables()}, {criu_rules()}")


def end(program):
    """Lets the child read, and ends the program."""
    os.kill(program.pid, signal.SIGHUP)
    program.await_output(r"^WHOLE$|^FAILED.*$")
    program.finish()
    program.world.stasis("delete", "job")


def removed_and_made_again(world):
    program = start(world)
    for _ in range(2):
        program.dump("--tcp=keep")
        expect_tables(0, "after the dump")
        demand("block" not in world.last.err + world.last.out, world.last)
        program.restore()
        expect_tables(0, "after the restore")
        program.expect_running()
    end(program)


def restored_after_a_crash(world):
    """CRIU itself has removed the lock after the dump."""
    program = start(world)
    program.dump("--tcp=keep", "--leave-running")
    expect_tables(0, "after the dump")
    program.kill()
    program.restore()
    expect_tables(0, "after the restore")
    program.expect_running()
    end(program)


def removed_after_a_failed_restore(world):
    program = start(world)
    program.dump("--tcp=keep")
    program.restore(expect=1, env={"STASIS_FAULT": "cpu-fill:before:fail"})
    expect_tables(0, "after the failed restore")
    program.restore()
    program.expect_running()
    end(program)


def stays_for_another_program(world):
    """The result says so, with the command that removes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = start(world, listener.getsockname()[1])
        connection, address = listener.accept()
        program.dump("--tcp=keep")
        expect_tables(1, "after the dump")
        said = world.last.err + world.last.out
        for part in (f"127.0.0.1:{address[1]} to 127.0.0.1:{listener.getsockname()[1]}", f"nft delete table inet {criu_tables()[0]}"):
            demand(part in said, lambda: f"'{part}' is not in {world.last}")
        program.restore()
        expect_tables(0, "after the restore")
        program.expect_running()
        # Without a restore, the named command removes it.
        program.dump("--tcp=keep")
        run(f"delete table inet {criu_tables()[0]}")
        program.restore()
        program.expect_running()
        end(program)
        connection.close()


def iptables_stay(world):
    """If the user asks for iptables."""
    program = start(world)
    program.dump("--tcp=keep", "--criu-opt", "network-lock=iptables")
    demand(criu_rules() and "iptables -D" in world.last.err + world.last.out, world.last)
    program.restore()
    expect_tables(0, "after the restore")
    program.expect_running()
    end(program)


CASES = [(removed_and_made_again,), (restored_after_a_crash,), (removed_after_a_failed_restore,), (stays_for_another_program,),
         *([(iptables_stay,)] if shutil.which("iptables") else [])]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
