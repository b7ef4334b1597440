"""The steps of limited.sh."""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
from control_groups import Group  # noqa: E402
from harness import Report, demand, is_alive, wait_until  # noqa: E402
from ride import Job, Machine  # noqa: E402

SOFT = os.environ.get("GPU") == "soft"
SIZE = os.environ.get("SIZE", "256M" if SOFT else "8G")
# softgpu's memory is charged to the group, too.
LIMIT_MIB = int(os.environ.get("LIMIT_MIB", "512" if SOFT else "3072"))
MIB = 1 << 20


class Limited:
    def __init__(self, machine, group):
        self.machine, self.group = machine, group
        self.store = pathlib.Path(os.environ.get("STORE", machine.state)) / "limited-images"
        self.job = Job(machine, "one", [machine.workload("vector"), "--memory", SIZE, "--interval", "20"])

    def start(self):
        self.job.wait_rounds(3, 120)
        demand(self.group.holds(self.job.pid), "the program is not in the control group")
        return f"{SIZE} of GPU memory below a limit of {LIMIT_MIB} MiB, control groups v{self.group.version}"

    def _told(self, what, done):
        account = done.json()
        path = ", through files" if "through files" in " ".join(account.get("notes", [])) else ""
        phases = ", ".join(f"{p['name']} {p['seconds']:.2f}" for p in account["phases"] if p["seconds"] > 0.05)
        demand(self.group.killed() == 0, "the kernel has killed a process of the group")
        return (f"{what}: {done.seconds:.2f} s by the clock{path}: {phases}; "
                f"at most {self.group.most_memory() / MIB:.0f} MiB were charged")

    def dump(self, name, *options):
        done = self.job.verb("dump", "one", "-d", self.store, "--name", name, *options, timeout_s=200)
        if "--leave-running" in options:
            self.job.wait_rounds(2, 60)
        else:
            wait_until(lambda: not is_alive(self.job.pid), 10, "the end of the program")
        return self._told(f"dump {' '.join(options)}", done)

    def restore(self, name):
        done = self.job.restore(self.store / name)
        self.job.wait_rounds(2, 120)
        return self._told("restore", done)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "200")), "limited")
    with Group("memory") as group:
        group.limit_memory(LIMIT_MIB * MIB)
        here = pathlib.Path("/proc/self/cgroup").read_text()
        (group.folder / "cgroup.procs").write_text(str(os.getpid()))
        machine = Machine(options.dist, report, SOFT)
        limited = Limited(machine, group)
        report.step("start", 120, limited.start)
        report.step("dump, the program runs on", 200, lambda: limited.dump("first", "--leave-running"))
        report.step("dump, the program ends", 200, lambda: limited.dump("second"))
        report.step("restore", 120, lambda: limited.restore("second"))
        machine.stasis(None, "kill", "one", "-s", "KILL", expect=None)
        machine.stasis(None, "wait", "one", expect=None)
        machine.stasis(None, "arena", "free")
        leave(group, here)
        machine.clean()
    return report.finish()


def leave(group, before):
    """Moves this process back to the group in which it was started."""
    for line in before.splitlines():
        number, controllers, path = line.split(":", 2)
        mine = number == "0" if group.version == 2 else "memory" in controllers.split(",")
        if mine:
            (group.folder.parent / path.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))


if __name__ == "__main__":
    sys.exit(main())
