"""The steps of migrate.sh."""

import argparse
import functools
import os
import pathlib
import sys

from fast_path import periodic
from harness import Output, Report, demand, run, wait_until
from ride import Machine, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
MOVES = int(os.environ.get("MOVES", "2" if SOFT else "4"))
TOKENS = 48
# Does the same as `ip link set lo up`, because the machine may lack `ip`: SIOCSIFFLAGS with IFF_UP and IFF_RUNNING.
LOOPBACK_UP = ("import fcntl, socket, struct; "
               "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x41))")


class Hosts:
    """Host a is the machine's own state folder, host b another one."""

    def __init__(self, machine):
        self.machine = machine
        self.dist = machine.dist
        for name, other in ("ab", "ba"):
            folder = machine.state / name
            (folder / "bin").mkdir(parents=True)
            network = folder / "network"
            network.touch()
            # The driver's abstract sockets belong to the network namespace.
            run(["unshare", f"--net={network}", sys.executable, "-c", LOOPBACK_UP], 10)
            command = folder / "bin" / "stasis"
            command.write_text(f"""#!/bin/sh
export STASIS_STATE_DIR={folder} STASIS_MIGRATE_SSH="sh -c '{machine.state / other}/bin/stasis receive'"
exec nsenter --net={network} {self.dist}/bin/stasis "$@"
""")
            command.chmod(0o755)

    def __call__(self, host, *words, subject=None, **options):
        self.machine.dist = self.machine.state / host
        try:
            return self.machine.stasis(subject, *words, **options)
        finally:
            self.machine.dist = self.dist

    def end(self):
        for host in "ab":
            self(host, "arena", "free", expect=None)
            run(["umount", self.machine.state / host / "run" / "arena"], 10)
            run(["umount", self.machine.state / host / "network"], 10)

    def output(self, host, name):
        return Output(self.machine.state / host / "data" / "jobs" / name / "log")


def rounds_more(output, more, seconds):
    before = output.count()
    wait_until(lambda: output.count() >= before + more or output.failure(), seconds,
               f"{more} more rounds in {output.path}")
    demand(output.failure() is None, f"{output.failure()}")


def move(hosts, name, command, undisturbed, check):
    """Moves the program there and back. The output on each host continues that of the other one."""
    report = hosts.machine.report
    hosts("a", "run", "--job", name, "--", *command)
    output = hosts.output("a", name)
    wait_until(lambda: output.has("READY") or output.failure(), 120, f"READY of {name}")
    rounds_more(output, undisturbed + 1, 120)
    lines = []
    for number in range(MOVES):
        here, there = ("a", "b") if number % 2 == 0 else ("b", "a")
        done = hosts(here, "migrate", name, there, "--new-pidns", subject=name, timeout_s=200).json()
        rounds_more(hosts.output(there, name), 3, 60)
        sent = done["migration"]["rounds"]
        restore = sum(p["seconds"] for p in done["migration"]["restore_phases"] if not p["depth"] and not p["parallel"])
        phases = {p["name"]: p["seconds"] for p in done["phases"]}
        report.number(f"{name}: pause {number + 1}", done["pause_s"], "s")
        lines.append(f"{here} to {there}: pause {done['pause_s']:.2f} s (hand-over {phases['hand-over']:.2f}, its send "
                     f"{sent[-1]['send_s']:.2f}, restore phases in order {restore:.2f} s); rounds "
                     + ", ".join(f"{r['sent_bytes'] >> 20} MiB in {r['dump_s']:.2f} + {r['send_s']:.2f} s" for r in sent))
        hosts(here, "delete", name)
    final = hosts.output("a" if MOVES % 2 == 0 else "b", name)
    hosts("a" if MOVES % 2 == 0 else "b", "kill", name, "-s", "KILL")
    return "\n".join([*lines, check(final, undisturbed)])


def whole(output, _):
    sequence_is_whole(output)
    return f"{output.count()} rounds, none missing"


def main():
    parser = argparse.ArgumentParser(prog="migrate.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("names", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "300")), "migrate")
    machine = Machine(options.dist, report, SOFT)
    hosts = Hosts(machine)
    llama = [sys.executable, HERE / "torch_llama.py", "--layers", os.environ.get("LAYERS", "32"), "--cache",
             os.environ.get("CACHE_GIB", "0"), "--tokens", TOKENS]
    vector = [machine.workload("vector"), "--memory", os.environ.get("VECTOR", "256M" if SOFT else "4G"),
              "--interval", "50"]
    steps = {"vector": (vector, 3, whole)}
    if not SOFT:
        steps["llama"] = (llama, 2 * TOKENS, lambda output, undisturbed: periodic(output, TOKENS, undisturbed))
    try:
        for name, (command, undisturbed, check) in steps.items():
            if not options.names or name in options.names:
                report.step(name, 200, functools.partial(move, hosts, name, command, undisturbed, check))
    finally:
        for host in "ab":
            for name in steps:
                hosts(host, "kill", name, "-s", "KILL", expect=None)
        hosts.end()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
