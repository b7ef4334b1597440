"""The steps of dropin.sh."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from harness import Output, Report, StepSkipped, demand, is_alive, run, tail, wait_until
from ride import Machine, sequence_is_whole

SOFT = os.environ.get("GPU") == "soft"
SOURCE = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = pathlib.Path(os.environ.get("CUDA_PLUGIN", SOURCE / ".cache" / "criu" / "lib"))


class Program:
    """Starts a program as from a shell, with or without the agent."""

    def __init__(self, machine, name, workload, *args, agent):
        self.machine = machine
        self.output = Output(machine.log(f"{name}.out"))
        env = dict(machine.env)
        if agent:
            env["LD_PRELOAD"] = str(machine.dist / "lib" / "libstasis-agent.so")
        with open(self.output.path, "ab") as file:
            self.child = subprocess.Popen([machine.workload(workload), *map(str, args)], env=env, stdout=file,
                                          stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
        self.pid = self.child.pid
        wait_until(lambda: self.output.has("READY"), 60, f"{name} being ready")
        self.goes_on()

    def goes_on(self):
        goal = self.output.count() + 2
        wait_until(lambda: self.output.count() >= goal, 30, "two more rounds")

    def finish(self):
        os.kill(self.pid, signal.SIGTERM)
        wait_until(lambda: self.output.has("EXIT-SUCCESS") or self.output.failure(), 60, "the end")
        demand(self.output.failure() is None, tail(self.output.text(), 800))
        sequence_is_whole(self.output)

    def reap(self):
        self.child.wait(30)


class Steps:
    def __init__(self, machine):
        self.machine = machine
        self.ours = machine.dist / "libexec" / "compat" / "cuda-checkpoint"
        self.theirs = os.environ.get("NVIDIA_TOOL") or shutil.which("cuda-checkpoint")

    def call(self, tool, *words):
        return run([tool, *words], 120, self.machine.log(self.machine.report.step_name), self.machine.env)

    def beside_theirs(self):
        """Compares single calls: states and thread ids must agree, exit codes are recorded."""
        if not self.theirs:
            raise StepSkipped("NVIDIA's cuda-checkpoint is not here (NVIDIA_TOOL, or PATH)")
        differ = []
        told = {}
        for name, tool in (("ours", self.ours), ("theirs", self.theirs)):
            program = Program(self.machine, f"beside-{name}", "vector", "--memory", "1G", agent=False)
            pid = str(program.pid)
            tid = self.call(tool, "--get-restore-tid", "--pid", pid).out.strip()
            demand(pathlib.Path(f"/proc/{pid}/task/{tid}").is_dir(), f"{name}: {tid} is none of its threads")
            lines = told[name] = []
            for label, words in (
                    ("state", ["--get-state", "--pid", pid]),
                    ("state by thread", ["--get-state", "--pid", tid]),
                    ("restore of a running one", ["--action", "restore", "--pid", pid]),
                    ("unlock of a running one", ["--action", "unlock", "--pid", pid]),
                    ("lock", ["--action", "lock", "--pid", pid, "--timeout", "10000"]),
                    ("locked", ["--get-state", "--pid", tid]),
                    ("lock of a locked one", ["--action", "lock", "--pid", pid]),
                    ("toggle of a locked one", ["--toggle", "--pid", pid]),
                    ("its state", ["--get-state", "--pid", pid]),
                    ("checkpoint", ["--action", "checkpoint", "--pid", pid]),
                    ("checkpointed", ["--get-state", "--pid", pid]),
                    ("restore", ["--action", "restore", "--pid", pid]),
                    ("restored", ["--get-state", "--pid", pid]),
                    ("unlock", ["--action", "unlock", "--pid", pid]),
                    ("toggle", ["--toggle", "--pid", pid]),
                    ("toggled", ["--get-state", "--pid", pid]),
                    ("toggle back", ["--toggle", "--pid", pid]),
                    ("at last", ["--get-state", "--pid", pid]),
                    ("state of init", ["--get-state", "--pid", "1"]),
                    ("thread of init", ["--get-restore-tid", "--pid", "1"]),
                    ("nobody's state", ["--get-state", "--pid", "4194305"]),
                    ("timeout without lock", ["--action", "unlock", "--timeout", "5", "--pid", pid]),
                    ("no such option", ["--frob"]),
                    ("nothing", [])):
                done = self.call(tool, *words)
                lines.append((label, done.code, done.out.strip() if done.code == 0 and words else ""))
            program.goes_on()
            program.finish()
            program.reap()
        for mine, other in zip(told["ours"], told["theirs"]):
            if mine == other:
                continue
            # The resulting state must be the same; a refusal must come from both.
            wrong = mine[2] != other[2] or (mine[1] == 0) != (other[1] == 0)
            differ.append(f"{'DIFFERS' if wrong else 'code'} {mine[0]}: ours {mine[1:]}, theirs {other[1:]}")
        self.machine.report.facts["drop-in and NVIDIA's"] = "; ".join(differ) or "the same everywhere"
        demand(not [d for d in differ if d.startswith("DIFFERS")], "\n".join(differ))
        return "\n".join(differ)

    def criu(self, verb, folder, *words):
        env = {**self.machine.env, "PATH": f"{self.ours.parent}:{os.environ['PATH']}"}
        if SOFT:
            env["CRIU_FAULT"] = "138"  # skip the check for a GPU
        done = run([self.machine.dist / "libexec" / "criu", verb, "-v4", "-L", PLUGIN, "-D", folder, "-o",
                    f"{verb}.log", *words], 200, self.machine.log(self.machine.report.step_name), env)
        shutil.copy(folder / f"{verb}.log", self.machine.log(f"{folder.name}-{verb}"))
        demand(done.code == 0, f"criu {verb}: {done.code}\n{tail((folder / f'{verb}.log').read_text(), 1500)}")
        return done.seconds

    def plugin(self, agent, came_back, toggled=False, memory="4G"):
        """Dumps and restores with CRIU and its plugin; `came_back`: after a suspend and resume by
        Stasis."""
        def body():
            if not (PLUGIN / "cuda_plugin.so").exists():
                raise StepSkipped(f"no {PLUGIN}/cuda_plugin.so")
            name = f"plugin-{'agent' if agent else 'plain'}-{came_back}-{toggled}"
            program = Program(self.machine, name, "vector", "--memory", memory, agent=agent)
            if came_back:
                for verb in ("suspend", "resume"):
                    self.machine.stasis(name, verb, program.pid)
                program.goes_on()
            if toggled:
                done = self.call(self.ours, "--toggle", "--pid", program.pid)
                demand(done.code == 0, done.err)
                self.machine.report.time(name, "toggle", done.seconds)
            folder = self.machine.state / name
            folder.mkdir()
            self.machine.report.time(name, "criu dump", self.criu("dump", folder, "-t", program.pid))
            program.reap()
            # Nothing outside of the image may be needed.
            self.machine.stasis(None, "recover", expect=None)
            self.machine.stasis(None, "arena", "free")
            self.machine.report.time(name, "criu restore", self.criu("restore", folder, "-d"))
            program.goes_on()
            program.finish()
            wait_until(lambda: not is_alive(program.pid), 30, "its end")
            shutil.rmtree(folder)
            return ""
        return body


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    options = parser.parse_args()
    report = Report(options.out, int(os.environ.get("BUDGET_S", "300")), "dropin")
    machine = Machine(options.dist, report, SOFT)
    machine.env.setdefault("STASIS_CRIU", str(machine.dist / "libexec" / "criu"))
    report.facts["command"] = " ".join(sys.argv)
    report.facts["driver"] = machine.stasis(None, "version", expect=None).out.strip()
    steps = Steps(machine)
    memory = "64M" if SOFT else "4G"
    report.step("beside NVIDIA's own", 100, steps.beside_theirs)
    report.step("CRIU's plugin, no agent", 80, steps.plugin(False, False, memory=memory))
    report.step("CRIU's plugin, under the agent", 80, steps.plugin(True, False, memory=memory))
    report.step("CRIU's plugin, after a suspend and resume", 80, steps.plugin(True, True, memory=memory))
    report.step("CRIU's plugin, toggled before", 80, steps.plugin(True, True, toggled=True, memory=memory))
    machine.clean()
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
