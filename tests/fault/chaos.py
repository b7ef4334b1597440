"""chaos.py --build DIR [--seed N] [--seconds S] [--daemon]: gives random commands to several programs on two GPUs, one
or two at a time. At a random moment a Stasis process is killed, interrupted or made to fail. After each step `recover`
runs; then every program must be in its state with its data, or an image of it must be intact. Run it manually for any
time: each error that it finds deserves a table row or a scenario. The same seed gives the same steps, but not the same
timing."""

import argparse
import os
import random
import signal
import sys
import time
import traceback

from stand import Failed, Program, demand, isolate, processes, wait_until
from tree_table import Tree
from world import World, isolate_keep

OURS = ("stasis", "criu", "stasis-device-h", "stasis-mover", "stasis-worker")
PHASES = ["data-room", "data-precopy", "gate-close", "tree-check", "data-export", "data-release", "gpu-lock", "gpu-checkpoint",
          "data-save", "data-commit", "data-free", "record", "image-begin", "data-write", "cpu-dump", "describe",
          "commit", "cpu-write", "gpu-return", "data-load", "data-read", "cpu-restore", "data-bind", "gpu-restore", "gpu-unlock",
          "data-return", "adopt", "load-room"]
# Possible exit codes: rolled back, not supported, wrong state or busy, interrupted; something is
# left; done.
UNDONE = {1, 5, 7, 130, 143, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM}
# A command of the daemon got a signal: the operation continues.
LEFT = {129, 143}
UNKNOWN = {6, -signal.SIGKILL}
CODES = UNDONE | LEFT | UNKNOWN | {0}

# Commands allowed in a state, and the state afterwards.
MOVES = {
    "running": [("suspend", [], "suspended"), ("suspend", ["--keep-context"], "kept"), ("dump", [], "dumped"),
                ("dump", ["--leave-running"], "running"), ("resume", [], "running")],
    "suspended": [("resume", [], "running"), ("dump", [], "dumped"), ("suspend", [], "suspended"),
                  ("dump", ["--leave-running"], "suspended")],
    "kept": [("resume", [], "running"), ("suspend", [], "suspended"), ("dump", [], "dumped")],
    "dumped": [("restore", [], "running"), ("restore", ["--new-pidns"], "running"), ("suspend", [], "dumped")],
}


class Family(Tree):
    COUNT = 4

    def gpu_state(self):
        listed = self.world.stasis("gpu", "ls", "--json").json()["processes"]
        states = {p["pid"]: "kept" if p.get("context_kept") else p["state"] for p in listed}
        found = {states.get(pid, "none") for pid in self.members()}
        demand(len(self.members()) == self.COUNT, f"{len(self.members())} of the tree are left")
        demand(len(found) == 1, f"mixed: {found}")
        return found.pop()


class Subject:
    """One program and its expected state."""

    def __init__(self, chaos, name, kind):
        self.chaos, self.world, self.name, self.kind = chaos, chaos.world, name, kind
        self.undone = UNDONE - LEFT if self.world.daemon else UNDONE
        self.state = None
        self.images = []      # names of all existing images, the latest last
        self.begin()

    def begin(self):
        if self.kind == "tree":
            self.program = Family(self.world, self.name, "ring", ["--children", Family.COUNT, "--devices", 2,
                                                                  "--memory", "1M", "--interval", "20"])
        else:
            self.program = Program(self.world, self.name, "counter", ["--memory", "16M"])
        self.program.run(*(["--no-agent"] if self.kind == "plain" else []))
        self.program.expect_running()
        self.state = "running"

    def words(self, verb, options):
        """Returns the command line, and for a dump also the image name."""
        if verb == "dump":
            image = f"{self.name}-{len(self.world.log)}"
            self.program.packets_in[image] = self.program.packets
            return [verb, self.name, "--name", image, *options], image
        if verb == "restore":
            image = self.images[-1] if self.chaos.random.random() < 0.7 else self.name
            return [verb, image, "--job", self.name, *options], None
        return [verb, self.name, *options], None

    def exists(self, image):
        return (self.world.images / image / "manifest.pb").exists()

    def alive(self):
        self.program.find_pid()
        return self.program.pid != 0 and processes.is_alive(self.program.pid)

    def found(self):
        """Returns the state that the machine reports."""
        if not self.alive():
            return "dumped"
        gpu = self.program.gpu_state()
        states = {"running": "running", "checkpointed": "suspended", "kept": "kept"}
        demand(gpu in states, f"{self.name}: its GPU is {gpu}")
        return states[gpu]

    def settle(self, asked):
        """Checks the result. `asked`: the commands, each with the image that it was to make and the
        resulting state."""
        for command, image, _ in asked:
            if image and self.exists(image):
                self.images.append(image)
                self.world.stasis("image", "verify", image)
                demand(command.code not in self.undone, f"{self.name}: undone, and there is an image\n{command}")
        now = self.found()
        said = f"{self.name}: it was {self.state} and is {now}\n" + "\n".join(str(command) for command, *_ in asked)
        # The order of two commands is unknown.
        able = {self.state} if all(command.code != 0 for command, *_ in asked) or len(asked) > 1 else set()
        able |= {wanted for command, _, wanted in asked if command.code not in self.undone}
        if any(command.code not in self.undone | {0} for command, *_ in asked):
            able.add("running")
        made = [image for _, image, _ in asked if image and self.exists(image)]
        if now == "dumped" and self.state != "dumped" and not made:
            self.demand_lost_with_criu(asked, said)
            return
        demand(now in able, said)
        if now == "running" and self.state == "dumped":
            self.program.packets = self.program.packets_in.get(self.images[-1], self.program.packets)
        self.state = now
        if now == "running":
            self.program.expect_running()

    def demand_lost_with_criu(self, asked, said):
        """A CRIU killed while its code is in the program may kill the program: that is reported,
        and the program restarts (docs/decisions/criu-deadlines.md)."""
        words = "".join(command.err for command, *_ in asked)
        demand("criu" in self.chaos.struck and ("has ended" in words or "died" in words),
               f"the program is gone, and no image was made: {said}")
        print(f"   {self.name} died with CRIU", flush=True)
        for pid in processes.all_pids():
            if (found := processes.stat(pid)) and found[0] == "ring" and self.kind == "tree":
                processes.end(pid)
        self.world.stasis("wait", self.name, expect=None)
        self.world.stasis("delete", self.name)
        self.begin()

    def tidy(self):
        """Limits the number of images."""
        while len(self.images) > 2:
            self.world.stasis("image", "delete", self.images.pop(0))

    def end(self):
        if self.state == "dumped":
            self.world.stasis("restore", self.images[-1], "--job", self.name)
            self.program.find_pid()
        elif self.state != "running":
            self.world.stasis("resume", self.name)
        if self.state == "dumped":
            self.program.packets = self.program.packets_in.get(self.images[-1], 0)
        self.program.expect_running()
        self.program.finish()


class Chaos:
    def __init__(self, build, seed, daemon):
        self.random = random.Random(seed)
        self.world = World(build, daemon=daemon)
        self.world.set_gpu(2, "512M")
        self.steps = 0
        self.struck = set()   # processes killed in this step
        self.subjects = [Subject(self, name, kind) for name, kind in
                         [("alpha", "counter"), ("beta", "tree"), ("gamma", "plain")]]

    def injury(self):
        """Draws the faults for one command: its environment, and the signals with their targets and
        delays."""
        draw = self.random.random()
        if draw < 0.25:
            return {}, None, 0
        if draw < 0.45:
            how = self.random.choice(["fail", "die", "hang"])
            where = f"{self.random.choice(PHASES)}:{self.random.choice(['before', 'after'])}"
            return {"STASIS_FAULT": f"{where}:{how}"}, None, 0
        delay = self.random.choice([0.02, 0.1, 0.3, 0.8]) * self.random.random() * 2
        if draw < 0.6:
            return {}, self.random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]), delay
        return {}, self.random.sample(OURS, self.random.choice([1, 1, 1, 2])), delay

    def strike(self, command, what):
        if isinstance(what, signal.Signals):
            if command.process.poll() is None:
                command.process.send_signal(what)
            return
        self.struck |= set(what)
        for pid in processes.all_pids():
            found = processes.stat(pid)
            if found and found[0] in what:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def step(self):
        self.steps += 1
        self.struck = set()
        chosen = self.random.sample(self.subjects, self.random.choice([1, 1, 2]))
        if self.random.random() < 0.15:
            chosen = chosen[:1] * 2
        begun = []
        said = []
        for subject in chosen:
            verb, options, wanted = self.random.choice(MOVES[subject.state])
            words, image = subject.words(verb, options)
            env, what, delay = self.injury()
            if "hang" in env.get("STASIS_FAULT", ""):
                words += ["--timeout", "3"]
            said.append(f"{' '.join(words)} ({subject.state}) {env or what or ''} {delay:.2f}")
            begun.append((subject, self.world.begin(*words, env=env), image, wanted, what, delay))
        print(f"{self.steps}: " + " | ".join(said), flush=True)
        for _, command, _, _, what, delay in begun:
            if what:
                time.sleep(delay)
                self.strike(command, what)
        for _, command, *_ in begun:
            command.wait(120)
            demand(command.code in CODES, f"exit code {command.code}:\n{command}")
        self.world.reap()
        self.world.stasis("recover")
        # A helper that outlives its command holds the files that the command was writing.
        wait_until(lambda: self.world.reap() or not any("/stasis" in found for found in self.world.leftovers()
                                                        if found.startswith("process")), 60, "helpers stay")
        self.world.stasis("recover")
        self.world.expect_clean()
        print("   " + ", ".join(f"{command.code}" for _, command, *_ in begun), flush=True)
        for subject in self.subjects:
            subject.settle([row[1:4] for row in begun if row[0] is subject])
            subject.tidy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--daemon", action="store_true", help="run commands through a daemon")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    isolate.enter(isolate_keep(options.build))
    chaos = Chaos(options.build, options.seed, options.daemon)
    until = time.monotonic() + options.seconds
    try:
        while time.monotonic() < until:
            chaos.step()
        for subject in chaos.subjects:
            subject.end()
        chaos.world.close()
    except Exception as error:  # noqa: BLE001
        print(str(error) if isinstance(error, (Failed, processes.Late)) else traceback.format_exc())
        told = [command for command in chaos.world.log
                if command.words[1] not in ("ps", "gpu") and "udp_send" not in command.words[0]]
        print("The last commands:", *told[-14:], sep="\n")
        print(f"FAILED at step {chaos.steps}, seed {options.seed}")
        return 1
    print(f"{chaos.steps} steps, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
