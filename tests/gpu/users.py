"""The steps of users.sh."""

import argparse
import json
import os
import pathlib
import signal
import sys

from harness import Output, Report, demand, is_alive, run, tail, wait_until
from ride import Machine, sequence_is_whole

SOFT = os.environ.get("GPU") == "soft"
USER = 4321  # an unused user id


class User:
    def __init__(self, machine):
        self.machine = machine
        self.home = machine.state / "user"
        self.home.mkdir()
        os.chown(self.home, USER, USER)
        # The user's directories are private; the daemon is root's.
        self.env = {key: value for key, value in machine.env.items() if key != "STASIS_STATE_DIR"}
        self.env["HOME"] = str(self.home)

    def stasis(self, *words, expect=0, timeout_s=90):
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--"]
        done = run([*user, self.machine.dist / "bin" / "stasis", "--json", *words], timeout_s,
                   self.machine.log(self.machine.report.step_name), self.env)
        demand(done.code == expect, f"stasis {' '.join(map(str, words))}: exit code {done.code}\n{tail(done.err, 800)}")
        if done.code == 0:
            self.machine.report.time("user's", words[0] if words[0] != "--no-daemon" else words[1], done.seconds, done.json())
        return done


def life(machine, user):
    started = user.stasis("run", "--job", "mine", "--", machine.workload("vector"), "--memory", "64M" if SOFT else "4G",
                          "--interval", "20").json()
    pid, output = started["pid"], Output(started["log"])
    wait_until(lambda: output.count() > 3, 60, f"its first rounds:\n{tail(output.text(), 800)}")

    def goes_on():
        before = output.count()
        wait_until(lambda: output.count() > before + 3, 30, "more rounds")

    try:
        for door in ([], ["--no-daemon"]):
            account = user.stasis(*door, "suspend", "mine").json()
            demand(account["path"] == "shared", f"the path was {account['path']}")
            user.stasis(*door, "resume", "mine")
            goes_on()
        refused = user.stasis("--no-daemon", "dump", "mine", expect=4)
        goes_on()
        user.stasis("dump", "mine")
        wait_until(lambda: not is_alive(pid), 10, "the end of the dumped program")
        pid = user.stasis("restore", "mine").json()["pid"]
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        demand(f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status and "CapEff:\t0000000000000000" in status,
               f"it is not the user's alone:\n{status}")
        goes_on()
        user.stasis("suspend", "mine")
        user.stasis("resume", "mine")
        goes_on()
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: output.has("EXIT-SUCCESS") or output.failure(), 60, "its end")
        demand(output.has("EXIT-SUCCESS"), tail(output.text(), 800))
        sequence_is_whole(output)
        return "without the daemon a dump is refused: " + json.loads(refused.out)["error"]["message"]
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(prog="users.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "120")), "users")
    machine = Machine(options.dist, report, SOFT)
    machine.state.chmod(0o755)
    door = machine.state / "door"
    door.mkdir(mode=0o755)
    machine.env["STASIS_SOCKET"] = str(door / "stasisd.sock")
    machine.stasis(None, "daemon", "start")
    user = User(machine)
    report.step("life", 110, lambda: life(machine, user))
    machine.stasis(None, "daemon", "drain", expect=None)
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
