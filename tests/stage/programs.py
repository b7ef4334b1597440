"""A program under test: one of the workloads, as a job or without one."""

import os
import re
import signal
import subprocess

import processes
from processes import wait_until
from world import demand

# Generous limit for things that take a moment on an idle machine.
OUTPUT_S = 90

ROUND = re.compile(r"^ROUND (\d+) (\S+)\n", re.M)  # a complete line


class Program:
    """Keeps track of the program's output files, the position read so far, and its process."""

    def __init__(self, world, name, workload, args):
        self.world = world
        self.name = name
        self.workload = workload
        self.words = [str(world.workloads / workload), *map(str, args)]
        self.pid = 0
        self.number = None       # pid in its own pid namespace
        self.is_job = False
        self.child = None        # a Popen if started without a job
        self.files = []          # possible output files
        self.cursors = {}
        self.image = None        # the last one made of it
        self.packets = 100       # last answer of a counter
        self.packets_in = {}     # and its answer when an image was made

    # Start.

    def run(self, *options, env=None):
        """Starts it as a job; `env` is added to the command's environment."""
        if not self.world.agent:
            options = ("--no-agent", *options)
        log = self.world.folder / f"{self.name}-{len(self.world.log)}.log"
        # The first process that needs softgpu's broker starts it. If that were the program, its
        # shim would adopt the broker as part of the job.
        self.world.stasis("gpu", "ls")
        self.world.stasis("run", "--json", "--job", self.name, "--log", log, *options, "--", *self.words,
                          env=env)
        self.pid = self.world.last.json()["pid"]
        self.number = processes.inner_pid(self.pid)
        self.is_job = True
        self.files = [log]
        self.await_output(r"^READY$")
        return self

    def adopt(self):
        """Uses a program that is already a job, with the job's own log."""
        self.is_job = True
        self.files = [self.world.state / "data" / "jobs" / self.name / "log"]
        self.await_output(r"^READY$")
        self.find_pid()

    def spawn(self, env=None):
        """Starts it without a job, with its output in a file, like a shell; `env` is added to its
        environment."""
        path = self.world.folder / f"{self.name}-{len(self.world.log)}.out"
        with open(path, "wb") as file:
            self.child = subprocess.Popen([*self.world.user_words(), *self.words], env={**self.world.env, **(env or {})}, cwd=self.world.folder,
                                          stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                          start_new_session=True)
        self.pid = self.child.pid
        self.number = processes.inner_pid(self.pid)
        self.world.own(self.pid)
        self.files = [path]
        self.await_output(r"^READY$")
        return self

    def manage(self, *options, expect=0, env=None):
        """Makes a spawned program a job. Until it is restored this process stays its parent."""
        self.world.stasis("manage", self.pid, "--job", self.name, *options, expect=expect, env=env)
        if self.world.last.code == 0:
            self.is_job = True
            self.files = [*self.files, self.world.state / "data" / "jobs" / self.name / "log"]

    def find_pid(self):
        listed = self.world.stasis("ps", "-a", "--json").json()["jobs"]
        mine = [job for job in listed if job["id"] == self.name]
        demand(len(mine) == 1, f"`stasis ps -a` shows {len(mine)} jobs {self.name}")
        self.pid = mine[0]["pid"] or 0
        if self.pid:
            self.number = processes.inner_pid(self.pid)
        return self.pid

    @property
    def target(self):
        return self.name if self.is_job else str(self.pid)

    def state(self):
        """Returns the state as a user sees it."""
        listed = self.world.stasis("ps", "-a", "--json").json()["jobs"]
        for job in listed:
            if job["id"] == self.name:
                return job["state"]
        return "absent"

    def gpu_state(self):
        """Returns the driver's state; "kept" if only its data was removed."""
        gpu = self.world.stasis("gpu", "state", self.pid, "--json").json()
        return "kept" if gpu["context_kept"] else gpu["state"]

    # Output.

    def text(self, path):
        try:
            with open(path, errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def output(self):
        return "\n".join(self.text(path) for path in self.files)

    def await_output(self, pattern, seconds=OUTPUT_S):
        """Returns the next match of `pattern` that was not seen before."""
        expression = re.compile(pattern, re.M)

        def look():
            ended = self._ended()  # must precede the read of the last output
            for path in self.files:
                text = self.text(path)
                match = expression.search(text, self.cursors.get(path, 0))
                if match:
                    self.cursors[path] = match.end()
                    return match
            return ended

        found = wait_until(look, seconds, lambda: f"{self.name} did not print {pattern}:\n{self.tail()}")
        demand(found is not True, lambda: f"{self.name} ended and did not print {pattern}:\n{self.tail()}")
        return found

    def _ended(self):
        return self.pid != 0 and not processes.is_alive(self.pid)

    def tail(self):
        return "\n".join(self.output().splitlines()[-15:])

    # Checks.

    def port(self):
        return int(re.search(r"^PORT (\d+)\n", self.output(), re.M).group(1))

    def send(self, text, seconds=60):
        sender = self.world.begin("--timeout", seconds * 1000, self.port(), text,
                                  program=self.world.workloads / "udp_send")
        wait_until(lambda: sender.process.poll() is not None or self._ended(), seconds + 5, "udp_send hangs")
        if sender.process.poll() is None:
            sender.process.kill()
        sender.wait()
        ended = " (it has ended)" if self._ended() else ""
        demand(sender.code == 0, lambda: f"{self.name}{ended} does not answer '{text}': {sender.err}\n{self.tail()}")
        return sender.out.strip()

    def expect_running(self):
        """Checks that it continues and prints."""
        if self.workload in ("counter", "hip/counter") and "--rounds" not in self.words:
            self.packets += 1
            answer = self.send("next")
            demand(answer == str(self.packets), f"{self.name} answers {answer}, not {self.packets}")
            answer = self.send("verify")
            demand(answer.startswith("OK "), f"{self.name} finds its memory {answer}")
            return
        for path in self.files:
            self.cursors[path] = len(self.text(path))
        self.await_output(r"^ROUND \d+ \S+\n")
        self.await_output(r"^ROUND \d+ \S+\n")
        self.expect_rounds_in_order()

    def expect_rounds_in_order(self):
        """Checks that no round is missing, and that rounds repeated after a restore have equal
        checksums."""
        checksums = {}
        for path in self.files:
            for number, checksum in ROUND.findall(self.text(path)):
                demand(checksums.setdefault(int(number), checksum) == checksum,
                       lambda: f"{self.name}: round {number} is {checksum} and was {checksums[int(number)]}")
        if checksums:
            missing = set(range(min(checksums), max(checksums) + 1)) - set(checksums)
            demand(not missing, lambda: f"{self.name}: no round {sorted(missing)[:5]}")

    # End.

    def finish(self):
        """Asks it to exit; it verifies all of its data first."""
        os.kill(self.pid, signal.SIGTERM)
        self.await_gone()
        text = self.output()
        failed = [line for line in text.splitlines() if "FAILED" in line]
        demand(not failed, lambda: f"{self.name}: {failed}\n{self.tail()}")
        wait_until(lambda: "EXIT-SUCCESS" in self.output(), 60,
                   lambda: f"{self.name} did not print EXIT-SUCCESS:\n{self.tail()}")
        if self.is_job and not self.child:
            code = self.world.stasis("wait", self.name, expect=None).code
            demand(code == 0, f"`stasis wait {self.name}` ends with {code}")
        elif self.child:
            demand(self.child.wait() == 0, f"{self.name} ended with {self.child.returncode}")

    def kill(self, number=signal.SIGKILL):
        """Kills its whole tree and waits until nothing is left."""
        members = self.whole_tree()
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        self.await_gone()
        for pid, before in members.items():
            self.await_reaped(pid, before)

    def whole_tree(self):
        """Returns its processes with their /proc data (processes.stat)."""
        found = {pid: processes.stat(pid) for pid in processes.tree(self.pid)}
        return {pid: stat for pid, stat in found.items() if stat}

    def await_gone(self):
        """Waits until neither a process nor a zombie has its pid."""
        self.await_reaped(self.pid)
        self.world.disown(self.pid)

    def await_reaped(self, pid, before=None):
        """Waits until the pid is free or belongs to another process than `before` (processes.stat).
        """
        def gone():
            if self.child and self.child.pid == pid:
                self.child.poll()
            self.world.reap()
            now = processes.stat(pid)
            return now is None or (before is not None and now[3] != before[3])
        wait_until(gone, OUTPUT_S, lambda: f"{self.name} does not end: {processes.describe(pid)}")

    # Images.

    def dump(self, *options, name=None, expect=0, **more):
        name = name or f"{self.name}-{len(self.world.log)}"
        members = self.whole_tree() if self.is_job else {}
        self.world.stasis("dump", self.target, "--name", name, *options, expect=expect, **more)
        if self.world.last.code == 0:
            self.image = name
            self.packets_in[name] = self.packets
            if "--leave-running" not in options:
                # This process must reap processes whose shim was killed.
                left = [pid for pid, before in members.items() if (now := processes.stat(pid))
                        and now[3] == before[3] and now[2] != os.getpid()]
                demand(not left, lambda: f"left of {self.name} after its dump: {list(map(processes.describe, left))}")
                self.await_gone()
        return name

    def restore(self, image=None, *options, expect=0, **more):
        before = self.number
        if self.is_job and image is None:
            self.world.stasis("restore", self.name, *options, expect=expect, **more)
        else:
            self.world.stasis("restore", image or self.image, "--job", self.name, *options,
                              expect=expect, **more)
        if self.world.last.code != 0:
            return
        self.packets = self.packets_in.get(os.path.basename(image or self.image), self.packets)
        self.child = None
        if not self.is_job:
            self.is_job = True
            log = self.world.state / "data" / "jobs" / self.name / "log"
            self.files = [*self.files, log]
        self.find_pid()
        demand(self.number == before, f"{self.name} was process {before} and is {self.number} now")
        apart = "--new-pidns" in options
        demand(apart == (self.pid != self.number), f"{self.name} is process {self.pid} and calls itself {self.number}")

