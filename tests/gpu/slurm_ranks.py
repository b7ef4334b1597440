"""The steps of slurm_ranks.sh."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from harness import Output, Report, demand, is_alive, run, tail, wait_until
from ride import Machine, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
ROUNDS = int(os.environ.get("ROUNDS", "2"))
RANKS = int(os.environ.get("RANKS", "2"))
BACKEND = os.environ.get("BACKEND", "nccl")
USER = 4321  # an unused user id
NODE_JOB = "slurm-7.0.n0"
DUMPED_CODE = 75
RIGHTS = "+checkpoint_restore,+net_admin"


class Launcher:
    """The launcher of one task of job 7, step 0."""

    def __init__(self, machine, home, rank):
        self.machine, self.home, self.rank = machine, home, rank
        self.output = Output(machine.log(f"task{rank}.out"))
        self.errors = machine.log(f"task{rank}.err")
        self.process = None

    def start(self, restarts):
        gpus = "0" if BACKEND == "gloo" else ",".join(str(gpu) for gpu in range(RANKS))
        env = {key: value for key, value in self.machine.env.items() if key != "STASIS_STATE_DIR"}
        env.update(HOME=str(self.home), SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_PROCID=str(self.rank),
                   SLURM_LOCALID=str(self.rank), SLURM_STEP_GPUS=gpus, SLURM_RESTART_COUNT=str(restarts),
                   GLOO_SOCKET_IFNAME="lo", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,NET")
        if SOFT:
            program = [self.machine.workload("vector"), "--memory", "64M", "--interval", "20"]
        else:
            program = [sys.executable, HERE / "nccl_ranks.py", "--apart", "--backend", BACKEND, "--ranks", RANKS, "--rank",
                       self.rank, "--meet", "tcp://127.0.0.1:29511"]
        words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"--inh-caps={RIGHTS}",
                 f"--ambient-caps={RIGHTS}", "--", self.machine.dist / "libexec" / "stasis-step", "--job",
                 f"slurm-7.0.{self.rank}", "--restarts", restarts, "--member", f"{self.rank}/{RANKS}/0", "--options",
                 "together,tcp=keep", "--", *program]
        # Slurm opens the files of a job with --open-mode=append.
        with open(self.output.path, "ab") as out, open(self.errors, "ab") as err:
            self.process = subprocess.Popen([str(word) for word in words], env=env, cwd=self.home, stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=err, start_new_session=True)

    def tell(self):
        errors = self.errors.read_text(errors="replace") if self.errors.exists() else ""
        return f"rank {self.rank}:\n{tail(self.output.text(), 800)}\n{tail(errors, 800)}"

    def end(self, timeout_s):
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            demand(False, f"the launcher does not end:\n{self.tell()}")


class Step:
    def __init__(self, machine):
        self.machine, self.report = machine, machine.report
        self.home = machine.state / "user"
        self.home.mkdir()
        os.chown(self.home, USER, USER)
        os.chmod(machine.state, 0o755)
        self.launchers = [Launcher(machine, self.home, rank) for rank in range(RANKS)]
        self.starts = 0

    def stasis(self, *words, expect=0):
        env = {key: value for key, value in self.machine.env.items() if key != "STASIS_STATE_DIR"}
        done = run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"--inh-caps={RIGHTS}",
                    f"--ambient-caps={RIGHTS}", "--", self.machine.dist / "bin" / "stasis", "--no-daemon", "--json", *words],
                   90, self.machine.log(self.report.step_name), {**env, "HOME": str(self.home)})
        demand(expect is None or done.code == expect, f"stasis {words}: exit code {done.code}\n{tail(done.err, 800)}")
        return done

    def tell(self):
        return "\n".join(launcher.tell() for launcher in self.launchers)

    def start(self):
        for launcher in self.launchers:
            launcher.start(self.starts)
        self.starts += 1

    def wait_rounds(self, more, timeout_s):
        first = self.launchers[0]
        goal = first.output.count() + more

        def there():
            for launcher in self.launchers:
                demand(launcher.output.failure() is None and launcher.process.poll() is None, self.tell())
            return first.output.count() >= goal
        wait_until(there, timeout_s, f"{more} more rounds:\n{self.tell()}")

    def first(self):
        self.start()
        self.wait_rounds(5, 150)
        return ""

    def preempt(self):
        began = time.monotonic()
        for launcher in self.launchers:
            launcher.process.send_signal(signal.SIGCONT)
        for launcher in self.launchers:
            launcher.process.send_signal(signal.SIGTERM)
        codes = [launcher.end(150) for launcher in self.launchers]
        self.report.number("from SIGTERM to exit code 75 of all tasks:", time.monotonic() - began, "s")
        demand(codes == [DUMPED_CODE] * RANKS, f"exit codes {codes}:\n{self.tell()}")
        if shutil.which("nft"):
            tables = run(["nft", "list", "tables"], 20).out
            demand("CRIU" not in tables, f"CRIU's network lock is left: {tables}")
        done = self.stasis("checkpoints", NODE_JOB)
        self.report.accounts.append({"subject": NODE_JOB, "what": "checkpoints", "account": done.json()})
        return ""

    def requeue(self):
        began = time.monotonic()
        self.start()
        self.wait_rounds(1, 150)
        self.report.number("from the start to the next round:", time.monotonic() - began, "s")
        self.wait_rounds(5, 60)
        sequence_is_whole(self.launchers[0].output)
        demand("starts over" not in self.tell(), self.tell())
        return ""

    def finish(self):
        """All programs get SIGTERM, compare their data a last time, and end; nothing is left."""
        self.stasis("kill", "--only", "--signal", "TERM", NODE_JOB)
        codes = [launcher.end(90) for launcher in self.launchers]
        demand(codes == [0] * RANKS and self.launchers[0].output.has("EXIT-SUCCESS"), f"exit codes {codes}:\n{self.tell()}")
        demand(not self.stasis("image", "ls").json()["images"], "images are left")
        text = self.launchers[0].output.text()
        transports = sorted({line.split(" via ")[1].split()[0] for line in text.splitlines() if " via " in line})
        return f"{self.launchers[0].output.count()} rounds; transports: {', '.join(transports) or 'not said'}"

    def kill(self):
        self.stasis("kill", "--signal", "KILL", NODE_JOB, expect=None)
        for launcher in self.launchers:
            if launcher.process is not None and is_alive(launcher.process.pid):
                launcher.process.kill()
                launcher.process.wait()


def main():
    dist, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    report = Report(out, float(os.environ.get("BUDGET_S", "400")), "slurm_ranks")
    machine = Machine(dist, report, SOFT)
    step = Step(machine)
    try:
        report.step("start", 170, step.first)
        for number in range(1, ROUNDS + 1):
            report.step(f"preemption {number}", 160, step.preempt)
            report.step(f"requeue {number}", 160, step.requeue)
        report.step("end", 100, step.finish)
    finally:
        step.kill()
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
