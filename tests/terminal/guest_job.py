"""The guest program as a job."""

import pathlib

import processes
from processes import wait_until
from screen import PATIENCE_S, Screen

GUEST = ["python3", "-B", str(pathlib.Path(__file__).resolve().parent / "guest.py")]


class Job:
    """The guest program as a job, with or without a terminal."""

    count = 0

    def __init__(self, world):
        Job.count += 1
        self.world, self.name = world, f"guest{Job.count}"
        self.folder = world.state / "data" / "jobs" / self.name
        self.images = []

    def attached(self, *options, program=GUEST, **more):
        return Screen(self.world, "run", "--attach", "--no-agent", "--job", self.name, *options, "--", *program,
                      **more)

    def start(self, *options, program=GUEST, **more):
        self.world.stasis("run", "--no-agent", "--job", self.name, *options, "--", *program, **more)
        return self

    def attach(self, *options, **more):
        return Screen(self.world, "attach", *options, self.name, **more)

    def inspect(self):
        return self.world.stasis("inspect", self.name, "--json").json()

    def shim_words(self):
        shim = processes.stat(self.inspect()["pid"])[2]
        return pathlib.Path(f"/proc/{shim}/cmdline").read_text().split("\0")

    def await_log(self, text):
        log = self.folder / "log"
        wait_until(lambda: text in (log.read_text() if log.exists() else ""), PATIENCE_S,
                   lambda: f"no {text!r} in the log:\n{log.read_text()[-2000:]}")

    @property
    def image(self):
        return self.images[-1]

    def dump(self, *options, target=None):
        self.images.append(f"{self.name}-{len(self.images)}")
        self.world.stasis("dump", target or self.name, "--name", self.image, *options)

    def restore(self, *options, **more):
        return self.world.stasis("restore", self.image, "--job", self.name, *options, **more)

    def finish(self):
        self.world.stasis("kill", self.name, "-s", "KILL", expect=None)
        self.world.stasis("wait", self.name, expect=None)
        self.world.stasis("delete", self.name)
        for image in self.images:
            self.world.stasis("image", "delete", image)
