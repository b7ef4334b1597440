"""Control groups for one test: created below the root of a hierarchy, and removed."""

import pathlib
import secrets

import isolate
from processes import wait_until


def _hierarchies():
    """Returns (mount point, version, controllers) of the mounted hierarchies."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            if kind == "cgroup":
                yield words.split()[4], 1, options.strip().split(",")
            elif kind == "cgroup2":
                folder = words.split()[4]
                yield folder, 2, pathlib.Path(folder, "cgroup.controllers").read_text().split()


class Group:
    """For a `with` statement: a group in the first hierarchy that has `controller` (None: of
    version 2, with any controllers). Raises isolate.Unable if none can be created."""

    def __init__(self, controller):
        for point, version, controllers in _hierarchies():
            if controller in controllers or (controller is None and version == 2):
                self.version = version
                self.folder = pathlib.Path(point, f"stasis-test-{secrets.token_hex(4)}")
                try:
                    if version == 2 and controller is not None:
                        pathlib.Path(point, "cgroup.subtree_control").write_text(f"+{controller}")
                    self.folder.mkdir()
                except OSError as error:
                    raise isolate.Unable(f"make the control group {self.folder}: {error.strerror}") from None
                return
        raise isolate.Unable(f"no hierarchy of control groups has {controller}")

    @property
    def name(self):
        return f"/{self.folder.name}"

    def limit_memory(self, size):
        file = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.folder / file).write_text(str(size))

    def most_memory(self):
        """Returns the most memory that was charged to the group at any time."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")).read_text())

    def killed(self):
        """Returns how many processes of the group the kernel has killed for lack of memory."""
        text = (self.folder / ("memory.oom_control" if self.version == 1 else "memory.events")).read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")))

    def command(self, words):
        """Returns a shell line that runs the words in the group."""
        return f"echo $$ > {self.folder}/cgroup.procs && exec {' '.join(map(str, words))}"

    def holds(self, pid):
        return self.name in [line.split(":", 2)[2] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if failure is not None:
            # isolate kills processes that the test has left there.
            for pid in self._members():
                (self.folder.parent / "cgroup.procs").write_text(pid)
        wait_until(lambda: not self._members(), 60, f"{self.folder} is not empty")
        wait_until(self._removed, 60, f"{self.folder} cannot be removed")

    def _members(self):
        return (self.folder / "cgroup.procs").read_text().split()

    def _removed(self):
        # A process that has just ended may still count.
        try:
            self.folder.rmdir()
        except OSError:
            return False
        return True
