"""Takes one program through every command: starts, suspends, resumes, dumps, kills, restores and
finishes it."""

import os
import pathlib
import re
import shutil
import signal
import time

from harness import Output, StepFailed, demand, is_alive, run, tail, wait_until

VERB_TIMEOUT_S = 90


class Machine:
    """The unpacked tarball, its GPU, and a directory for jobs and images."""

    def __init__(self, dist, report, soft):
        self.dist = pathlib.Path(dist).resolve()
        self.report = report
        self.soft = soft
        self.state = pathlib.Path(
            os.environ.get("STATE_DIR", f"/tmp/stasis-{report.name.replace('_', '-')}"))
        self.clean()
        self.images = self.state / "images"
        self.images.mkdir(parents=True)
        self.env = dict(os.environ, STASIS_STATE_DIR=str(self.state / "stasis"))
        if soft:
            softgpu = self.dist / "lib" / "softgpu"
            self.env["LD_LIBRARY_PATH"] = str(softgpu)
            self.env["STASIS_CUDA_LIBRARY"] = str(softgpu / "libcuda.so.1")

    def clean(self):
        """Removes everything of this and earlier runs, including the arena's memory."""
        arena = self.state / "stasis" / "run" / "arena"
        if arena.is_mount():
            # A resident mover may have the arena open.
            run([self.dist / "bin" / "stasis", "arena", "free"], 30,
                env=dict(os.environ, STASIS_STATE_DIR=str(self.state / "stasis")))
            run(["umount", arena], 10)
        shutil.rmtree(self.state, ignore_errors=True)

    def log(self, name):
        return self.report.logs / f"{name}.log"

    def workload(self, name):
        return self.dist / "workloads" / name

    def stasis(self, subject, *words, timeout_s=VERB_TIMEOUT_S, expect=0):
        """Runs one command with --json and measures its time; its output goes to the step's log.
        Returns Done."""
        done = run([self.dist / "bin" / "stasis", "--json", *words], timeout_s,
                   self.log(self.report.step_name), self.env)
        if expect is not None:
            demand(done.code == expect,
                   f"stasis {' '.join(str(w) for w in words)}: exit code {done.code}, not {expect}\n"
                   + tail(done.err, 800))
        if done.code == 0 and subject:
            verb = " ".join(words[:2]) if words[0] == "gpu" else words[0]
            self.report.time(subject, verb, done.seconds, done.json())
        return done

    def gpu_memory(self):
        if self.soft:
            return "not asked"
        return run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"], 30).out.strip()

    def udp(self, port, text, timeout_ms=10000):
        done = run([self.workload("udp_send"), "--timeout", timeout_ms, port, text],
                   timeout_ms / 1000 + 5, self.log(self.report.step_name))
        demand(done.code == 0, f"no answer to {text!r}: {done.err.strip()}")
        return done.out.strip()


class Job:
    """A program under `stasis run`. It reports its own pid, so no command is needed for that."""

    def __init__(self, machine, name, command, env=None, agent=os.environ.get("AGENT") != "no"):
        self.machine = machine
        self.name = name
        self.output = Output(machine.log(f"{name}.out"))
        pid_file = machine.state / f"{name}.pid"
        pid_file.unlink(missing_ok=True)
        script = f'echo $$ >{pid_file}.part && mv {pid_file}.part {pid_file} && exec "$@"'
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        flags = [] if agent else ["--no-agent"]
        machine.stasis(None, "run", *flags, "--job", name, "--log", self.output.path, "--", "env", *settings,
                       "sh", "-c", script, "sh", *command)
        wait_until(pid_file.exists, 10, "the start of the program")
        self.pid = int(pid_file.read_text())

    def verb(self, *words, **options):
        return self.machine.stasis(self.name, *words, **options)

    def restore(self, image):
        return self.verb("restore", image, "--log", self.output.path)

    def wait_rounds(self, more, timeout_s):
        """Waits for `more` rounds beyond those already printed."""
        goal = self.output.count() + more

        def there():
            failure = self.output.failure()
            demand(failure is None, f"{self.name}: {failure}\n{tail(self.output.text(), 800)}")
            demand(self.output.count() >= goal or is_alive(self.pid),
                   f"{self.name} has ended:\n{tail(self.output.text(), 800)}")
            return self.output.count() >= goal

        wait_until(there, timeout_s, f"{more} more rounds of {self.name}")

    def wait_ready(self, timeout_s):
        def there():
            demand(is_alive(self.pid), f"{self.name} has ended:\n{tail(self.output.text(), 800)}")
            return self.output.has("READY")

        wait_until(there, timeout_s, f"{self.name} being ready")

    def finish(self, timeout_s=60):
        os.kill(self.pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(self.pid), timeout_s, f"the end of {self.name}")
        # The program's last output passes through a pipe and may arrive after the program has ended.
        try:
            wait_until(lambda: self.output.has("EXIT-SUCCESS") or self.output.failure(), 5,
                       "EXIT-SUCCESS")
        finally:
            demand(self.output.has("EXIT-SUCCESS"),
                   f"{self.name} did not end well:\n{tail(self.output.text(), 800)}")

    def demand_refusal(self, done, pattern):
        """The output must match `pattern`; PID in it stands for any process below the job's."""
        demand(done.code in (1, 5), f"exit code {done.code} is no refusal:\n{tail(done.err, 800)}")
        below = "|".join(str(pid) for pid in descendants(self.pid))
        demand(re.search(pattern.replace("PID", f"({below})"), done.err),
               f"the refusal says nothing of {pattern!r}:\n{tail(done.err, 800)}")

    def kill(self):
        """Kills all remaining processes of the job, if any."""
        for pid in [*descendants(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def gpu_files(self):
        """Returns the GPU files held by the process: none while it is suspended."""
        return [] if self.machine.soft else device_files(self.pid)


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += [*descendants(int(child)), int(child)]
        except OSError:
            pass
    return found


def device_files(pid):
    held = []
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            held.append(f"fd {fd.name} -> {target}")
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return held + sorted({line.split()[-1] for line in maps.splitlines() if "/dev/nvidia" in line})


def sequence_is_whole(output):
    """Checks that every round is printed once and in order."""
    numbers = [int(number) for number, _ in output.rounds()]
    demand(numbers == list(range(1, len(numbers) + 1)),
           f"the rounds are not 1, 2, 3, …: {numbers[:5]} … {numbers[-5:]}")


def ride(machine, name, command, *, env=None, ready_s=20, rounds_s=20, step_rounds=3,
         golden=None, refusal=None):
    """Runs every command on one program. Returns (rounds as printed, note). `golden`: the expected
    first rounds. `refusal`: the dump may be refused with a matching message, if the program is
    unharmed."""
    job = Job(machine, name, command, env)
    note = ""
    try:
        job.wait_ready(ready_s)
        job.wait_rounds(step_rounds, rounds_s)

        job.verb("suspend", name)
        demand(is_alive(job.pid), "suspend killed the program")
        held = job.gpu_files()
        demand(not held, f"suspended, but it still holds {held}")
        before = job.output.count()
        time.sleep(0.3)
        demand(job.output.count() <= before + 1, "it goes on although it is suspended")
        job.verb("resume", name)
        job.wait_rounds(step_rounds, rounds_s)

        image = machine.images / name
        dump = job.verb("dump", name, "-d", machine.images, "--name", name,
                        expect=None if refusal else 0)
        if dump.code != 0:
            job.demand_refusal(dump, refusal)
            demand(not image.exists(), "a refused dump has left an image")
            job.wait_rounds(step_rounds, rounds_s)
            note = "the dump was refused: " + dump.err.strip().splitlines()[0]
        else:
            wait_until(lambda: not is_alive(job.pid), 10, "the end of the dumped program")
            demand(image.is_dir(), f"there is no image {image}")
            machine.report.facts[f"image of {name}"] = (
                f"{sum(f.stat().st_size for f in image.rglob('*') if f.is_file()) / 1e6:.1f} MB")
            job.restore(image)
            job.wait_rounds(step_rounds, rounds_s)
        job.finish()
        sequence_is_whole(job.output)
        if golden is not None:
            printed = job.output.rounds()[:len(golden)]
            demand(printed == golden[:len(printed)], f"the rounds are not the known ones: {printed}")
        return job.output.rounds(), note
    except StepFailed:
        run(["cat", f"/proc/{job.pid}/stack", f"/proc/{job.pid}/wchan"], 5,
            machine.log(machine.report.step_name))
        raise
    finally:
        job.kill()
        shutil.rmtree(machine.images / name, ignore_errors=True)
