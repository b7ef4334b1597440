"""One test environment: a build of Stasis, software GPUs, a directory for everything, and the check
that nothing is left of it."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import isolate
import processes
from processes import Late, wait_until

# Time limit for one command, on a machine that is busy with other work too.
COMMAND_S = 90


class Failed(Exception):
    """The test found an error."""


def demand(condition, what):
    if not condition:
        raise Failed(what() if callable(what) else what)


class Command:
    """A Stasis command, running or finished."""

    def __init__(self, words, env, cwd, **more):
        self.words = [str(word) for word in words]
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.words, env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                                        stdout=self._out, stderr=self._err, **more)
        self.code = None

    @property
    def pid(self):
        return self.process.pid

    @staticmethod
    def _text(file):
        # Do not use seek(2), because the command may still write and shares the file position.
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace")

    @property
    def out(self):
        return self._text(self._out)

    @property
    def err(self):
        return self._text(self._err)

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Failed(f"not JSON: {self}") from None

    def wait(self, seconds=COMMAND_S):
        try:
            self.code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            stacks = [processes.describe(p) for p in processes.tree(self.pid)]
            self.process.kill()
            self.process.wait()
            raise Failed(f"it did not end in {seconds} s: {self}\n" + "\n".join(stacks)) from None
        return self

    def __str__(self):
        parts = [f"$ {' '.join(self.words)}", f"[exit {self.code}]", self.out, self.err]
        return "\n".join(part.rstrip() for part in parts if part)


# Where /run is no tmpfs, every CRIU tests at its start what the kernel can do. If it is killed in that moment, it leaves
# this mount.
CRIU_PROBE = "/tmp/.criu.move_mount_set_group."


class World:
    def __init__(self, build, devices=1, memory="1G", keep=False, daemon=False, uid=0, capabilities=(), place="/tmp"):
        """`daemon`: a daemon executes the commands, one for each of their environments. `uid`: the
        owner of the directory and of all processes started by these methods. `capabilities`: those
        that the user's commands of Stasis have. `place`: where the directory is created."""
        self.daemon = daemon
        self._daemons = {}  # environment of commands, which includes the daemon's socket -> daemon
        self.build = pathlib.Path(build).absolute()
        self.bin = self.build / "bin"
        self.workloads = self.build / "workloads"
        self.keep = keep
        self.uid = uid
        self.capabilities = capabilities
        self.every = False  # run long lists of cases completely
        self.agent = True  # start programs under the agent; otherwise the driver saves all memory
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="world-", dir=place))
        self.state = self.folder / "state"
        self.images = self.state / "data" / "images"
        self.journal = self.state / "run" / "journal"
        self.arenas = self.state / "run" / "arena"
        self.gpu_folder = self.folder / "gpu"
        (self.folder / "tmp").mkdir()
        for path in (self.folder, self.folder / "tmp"):
            os.chown(path, uid, uid)
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "LD_LIBRARY_PATH": str(self.build / "lib" / "softgpu"),
            "STASIS_STATE_DIR": str(self.state),
            "STASIS_UNDO_TIMEOUT_S": "10",  # a loaded machine takes seconds
            "STASIS_HELPER_IDLE_S": "0",  # tests with resident helpers override this
            "STASIS_SETTLE_TIMEOUT_S": "4",
            "SOFTGPU_DIR": str(self.gpu_folder),
        }
        for name in ("STASIS_CRIU", "LANG"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        self.set_gpu(devices, memory)
        self.last = None  # the last finished Stasis command
        self.log = []     # all of them, to be printed after a failure
        self._own = set()  # children that other code waits for
        self._mounts = isolate.mounts()

    def set_gpu(self, devices, memory):
        self.env["SOFTGPU_DEVICES"] = str(devices)
        self.env["SOFTGPU_MEMORY"] = str(memory)

    # Commands.

    def user_words(self, capabilities=()):
        """Returns the words before a command that run it as the user."""
        if self.uid == 0:
            return []
        given = [f"+{name}" for name in capabilities] or ["-all"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups",
                f"--inh-caps={','.join(given)}", f"--ambient-caps={','.join(given)}", "--"]

    def begin(self, *args, env=None, program="stasis", **more):
        env = {**self.env, **(env or {})}
        if self.daemon and program == "stasis" and args[:1] != ("daemon",):
            env = self._with_daemon(env)
        command = Command([*self.user_words(self.capabilities), self.bin / program, *args], env, self.folder, **more)
        self.log.append(command)
        return command

    def _daemon_verb(self, verb, env):
        command = Command([self.bin / "stasis", "daemon", verb], env, self.folder).wait()
        self.log.append(command)
        demand(command.code == 0, lambda: f"the daemon:\n{command}")

    def _with_daemon(self, env):
        key = tuple(sorted(env.items()))
        if key not in self._daemons:
            self._daemons[key] = {**env, "STASIS_SOCKET": str(self.folder / f"daemon-{len(self._daemons)}")}
            self._daemon_verb("start", self._daemons[key])
        return self._daemons[key]

    def end_daemons(self):
        for env in self._daemons.values():
            self._daemon_verb("drain", env)
        self._daemons = {}
        wait_until(lambda: self.reap() or not self.daemons(), 60, "a daemon does not end")

    def daemons(self):
        return [pid for pid in processes.all_pids()
                if (processes.stat(pid) or ("", "Z"))[0] == "stasisd" and processes.is_alive(pid)]

    def await_daemons_end(self):
        """Waits until all daemons are reaped, because threads of a zombie may still hold its socket and lock."""
        def gone():
            self.reap()
            return all((processes.stat(pid) or ("", ""))[0] != "stasisd" for pid in processes.all_pids())
        wait_until(gone, 60, "a daemon does not end")

    def stasis(self, *args, expect=0, env=None, seconds=COMMAND_S, **more):
        """Runs `stasis ARGS`; `expect` is its exit code (None: any, else one or a tuple)."""
        self.last = self.begin(*args, env=env, **more).wait(seconds)
        self.reap()
        if expect is not None:
            codes = expect if isinstance(expect, tuple) else (expect,)
            if self.daemon and -9 in codes:
                codes += (6,)  # if the worker was killed
            demand(self.last.code in codes, lambda: f"expected exit code {expect}:\n{self.last}")
        return self.last

    def shell(self, text, expect=0, env=None):
        """Runs a shell line with Stasis's programs on PATH."""
        self.last = self.begin("-c", text, env=env, program="/bin/sh").wait()
        self.reap()
        demand(self.last.code == expect, lambda: f"expected exit code {expect}:\n{self.last}")
        return self.last

    def gpus(self):
        return self.stasis("gpu", "ls", "--json").json()["gpus"]

    def gpu_fault(self, rules, pid=None):
        """Sets softgpu's faults (softgpu/README.md) for one process or all; an empty text clears
        them."""
        self.gpu_folder.mkdir(mode=0o700, exist_ok=True)
        path = self.gpu_folder / ("fault" if pid is None else f"fault.{pid}")
        new = path.with_name(path.name + ".new")
        new.write_text(rules)
        new.rename(path)

    def named(self, comm):
        """Returns the pids of the running processes of this name."""
        self.reap()
        return [pid for pid in processes.all_pids()
                if (processes.stat(pid) or ("", "Z"))[0] == comm and processes.is_alive(pid)]

    def movers(self):
        return self.named("stasis-mover")

    def device_helpers(self):
        return self.named("stasis-device-h")  # the kernel cuts names to 15 characters

    def reap(self):
        """Reaps orphans, because this process is the init process."""
        mine = {command.pid for command in self.log} | self._own
        for pid in processes.children(os.getpid()):
            found = processes.stat(pid)
            if pid not in mine and found and found[1] == "Z":
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def reap_all(self):
        """Reaps all children. Call it after everything was killed."""
        for command in self.log:
            command.process.wait(60)
        for pid in list(self._own):
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        self.reap()

    def own(self, pid):
        self._own.add(pid)

    def disown(self, pid):
        self._own.discard(pid)

    def forget_state(self):
        """Removes all traces of earlier use."""
        if str(self.arenas) in isolate.mounts():
            isolate.unmount(str(self.arenas))
        shutil.rmtree(self.state, ignore_errors=True)

    # Checks.

    def accept_mounts(self):
        """From now on the mounts that exist are not leftovers."""
        self._mounts = isolate.mounts()

    def leftovers(self):
        """Returns leftovers that are not allowed between two operations."""
        found = []
        if self.journal.is_dir():
            found += [f"journal entry {p.name}: {processes.text_of(p)[:300]}"
                      for p in self.journal.iterdir()]
        for folder in (self.state / "run").glob("work-*"):
            found.append(f"working folder {folder}")
        for store in {self.images, *self.folder.glob("store*")}:
            if store.is_dir():
                found += [f"half an image: {p}" for p in store.iterdir() if p.name.startswith(".")]
        for data in self.arenas.glob("[0-9]*.data"):
            if processes.stat(int(data.name.split("-")[0])) is None:
                found.append(f"GPU data of a process that has ended: {data}")
        for pid in processes.all_pids():
            comm = (processes.stat(pid) or ("",))[0]
            if comm in ("criu", "stasis", "stasis-device-h", "stasis-mover", "stasis-worker"):
                found.append(f"process {processes.describe(pid)}")
        # The memory for GPU data stays mounted; its content is checked after everything has ended. Every podman command
        # may leave podman's storage mounted.
        expected = {*self._mounts, str(self.arenas), "/var/lib/containers/storage/overlay"}
        new = [m for m in isolate.mounts() if m not in expected]
        for probe in [m for m in new if m.startswith(CRIU_PROBE)]:
            isolate.unmount(probe)
            os.rmdir(probe)
            new.remove(probe)
        return found + [f"mount {m}" for m in new]

    def has_begun(self, phase):
        """Waits until an operation in progress has begun this phase."""
        text = "".join(processes.text_of(p) for p in self.journal.glob("*.journal"))
        return f'"phase":"{phase}"' in "".join(text.split())

    def await_phase(self, phase):
        wait_until(lambda: self.has_begun(phase), 60, f"no operation has begun {phase}")

    def expect_clean(self):
        """Checks that nothing is left. Processes that are exiting may take a moment."""
        try:
            wait_until(lambda: self.reap() or not self.leftovers(), 30, "")
        except Late:
            raise Failed("left behind:\n  " + "\n  ".join(self.leftovers())) from None

    def close(self):
        """Ends the test. Raises Failed if a process, mount or file is left."""
        me = os.getpid()
        self.end_daemons()
        self.daemon = False

        def swept():
            if not self.arenas.is_dir() or not any(p.name.startswith(("kept-", "ready-")) for p in self.arenas.iterdir()):
                return True
            # Data of programs that have ended is freed by the next command that recovers. Shortly after a command, its
            # mover may still have the data locked.
            self.stasis("recover", expect=None)
            return False

        with contextlib.suppress(Late):  # reported below
            wait_until(swept, 10, "")

        def others():
            self.reap()
            return [p for p in processes.all_pids() if p != me]

        problems = []
        try:
            wait_until(lambda: not others(), 30, "")
        except Late:
            problems += [f"process {processes.describe(p)}" for p in others()]
            for pid in others():
                processes.end(pid)
        problems += [p for p in self.leftovers() if not p.startswith("process")]
        if self.arenas.is_dir():
            # The memory of an ended program is kept for the next one, empty.
            problems += [f"memory for GPU data {p}" for p in self.arenas.iterdir()
                         if not p.name.startswith("free-")]
            if str(self.arenas) in isolate.mounts():
                isolate.unmount(str(self.arenas))
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in isolate.PRIVATE_FOLDERS:
            if os.path.isdir(folder):
                problems += [f"file {folder}/{name}" for name in os.listdir(folder)
                             if not self._is_ours(f"{folder}/{name}")]
        demand(not problems, "left behind:\n  " + "\n  ".join(problems))

    def _is_ours(self, path):
        # Every podman command may create a file for podman's locks.
        kept = (str(self.folder), "/dev/shm/libpod_lock", *isolate_keep(self.build))
        return any(other == path or other.startswith(path + "/") for other in kept)

    def transcript(self, last=12):
        return "\n".join(str(command) for command in self.log[-last:])


def isolate_keep(build):
    """Returns paths that a test needs although they may be below /tmp."""
    source = pathlib.Path(__file__).resolve().parents[2]
    keep = [os.path.realpath(build), str(source)]
    if "STASIS_CRIU" in os.environ:
        keep.append(os.path.realpath(os.environ["STASIS_CRIU"]))
    return keep
