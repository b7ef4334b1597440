"""output_test.py --build DIR [--only WORD]: the destination of a program's output, before and after
a restore."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

# Prints the next number for each word received; `end` ends it. Retries a read that found
# end-of-file. {0} runs first, {1} each time.
SCRIPT = """{0}
i=0
while :; do if read x < "$1"; then
  [ "$x" = end ] && exit 9
  i=$((i+1)); {1}
  echo done > "$2"
fi; done"""


class Talker:
    """A job, or a program started without a job, that prints on request."""

    count = 0

    def __init__(self, world, before="", each="echo $i; echo err $i >&2"):
        Talker.count += 1
        self.world, self.name = world, f"talker{Talker.count}"
        self.folder = world.folder / self.name
        self.folder.mkdir()
        self.go, self.done = self.folder / "go", self.folder / "done"
        os.mkfifo(self.go)
        os.mkfifo(self.done)
        self.log = world.state / "data" / "jobs" / self.name / "log"
        self.argv = ["/bin/sh", "-c", SCRIPT.format(before, each), "sh", str(self.go), str(self.done)]
        self.number = 0
        self.pid = 0
        self.child = None
        self.job = self.name

    def run(self, *options):
        self.world.stasis("run", "--json", "--job", self.name, *options, "--", *self.argv)
        self.pid = self.world.last.json()["pid"]
        return self

    def spawn(self, stdout):
        self.child = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout,
                                      start_new_session=True)
        self.pid = self.child.pid
        self.world.own(self.pid)
        self.job = str(self.pid)
        return self

    def say(self):
        """Requests one more number; returns when the program has printed it."""
        def told():
            try:
                fd = os.open(self.go, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                demand(processes.is_alive(self.pid), f"{self.name} has ended")
                return False
            os.write(fd, b"go\n")
            os.close(fd)
            return True
        answer = os.open(self.done, os.O_RDONLY | os.O_NONBLOCK)
        wait_until(told, 90, f"{self.name} does not listen")
        wait_until(lambda: self._answered(answer), 90, f"{self.name} does not answer")
        os.close(answer)
        self.number += 1
        return self.number

    @staticmethod
    def _answered(fd):
        try:
            return os.read(fd, 16) != b""
        except BlockingIOError:
            return False

    def dump(self, *options):
        self.image = f"{self.name}-{len(self.world.log)}"
        self.world.stasis("dump", self.job, "--name", self.image, *options)
        self.dumped_at = self.number
        if "--leave-running" not in options:
            self.await_gone()
        return self.world.last

    def restore(self, *options):
        self.world.stasis("restore", self.image, "--job", self.name, *options)
        self.number, self.job, self.child = self.dumped_at, self.name, None
        return self.world.last

    def kill(self):
        for pid in processes.tree(self.pid):
            processes.end(pid)
        self.await_gone()

    def await_gone(self):
        def gone():
            if self.child:
                self.child.poll()
            self.world.reap()
            return processes.stat(self.pid) is None
        wait_until(gone, 90, lambda: f"{self.name} does not end: {processes.describe(self.pid)}")
        self.world.disown(self.pid)

    def kill_shim(self):
        """Kills the shim and waits until it is gone."""
        shim = processes.stat(self.pid)[2]
        processes.end(shim)
        wait_until(lambda: self.world.reap() or processes.stat(shim) is None, 90, "its shim does not end")

    def listed(self):
        jobs = self.world.stasis("ps", "-a", "--json").json()["jobs"]
        return next(job for job in jobs if job["id"] == self.name)

    def finish(self):
        if processes.is_alive(self.pid):
            self.kill()
        self.world.stasis("wait", self.name, expect=None)
        self.world.stasis("delete", self.name)


def read(path):
    return pathlib.Path(path).read_text()


def lines(first, last):
    return "".join(f"{n}\nerr {n}\n" for n in range(first, last + 1))


def expect(path, text):
    demand(read(path) == text, lambda: f"{path} holds\n{read(path)}\nand not\n{text}")


# Changes of the log while the program was dumped, and its content after one more number.

def as_it_was(log):
    return read(log)


def grown(log):
    with open(log, "a") as file:
        file.write("somebody else\n")
    return read(log)


def emptied(log):
    os.truncate(log, 0)
    return ""


def gone(log):
    os.unlink(log)
    return ""


def renamed(log):
    os.rename(log, f"{log}.1")
    return ""


def replaced(log):
    gone(log)
    pathlib.Path(log).write_text("a new one\n")
    return read(log)


def changed_log(world, change, own_log):
    talker = Talker(world)
    if own_log:
        talker.log = talker.folder / "out.log"
        talker.run("--log", talker.log)
    else:
        talker.run()
    talker.say()
    talker.dump()
    before = change(talker.log)
    talker.restore()
    talker.say()
    expect(talker.log, before + lines(2, 2))
    demand(world.stasis("logs", talker.name).out == before + lines(2, 2), "`stasis logs` shows something else")
    talker.finish()


def ran_on(world, change):
    """With --leave-running the log grows, and then the program is restored to its image."""
    talker = Talker(world).run()
    talker.say()
    talker.dump("--leave-running")
    talker.say()
    talker.kill()
    before = change(talker.log)
    talker.restore()
    talker.say()
    expect(talker.log, before + lines(2, 2))
    talker.finish()


def before_the_dump(world, change):
    """A log that was renamed or removed is still the job's log: the output appears under its
    original name."""
    talker = Talker(world).run()
    talker.say()
    change(talker.log)
    talker.say()  # goes to the other name, or to none
    before = read(talker.log) if os.path.exists(talker.log) else ""
    talker.dump()
    talker.restore()
    talker.say()
    expect(talker.log, before + lines(3, 3))
    talker.finish()


def other_log(world):
    talker = Talker(world).run()
    talker.say()
    talker.dump()
    other = talker.folder / "other.log"
    other.write_text("kept\n")
    talker.restore("--log", other)
    talker.say()
    expect(talker.log, lines(1, 1))
    expect(other, "kept\n" + lines(2, 2))
    demand(talker.listed()["log"] == str(other), "`stasis ps` names another log")
    # Again: the file stays the job's log under any name.
    talker.dump()
    talker.restore()
    talker.say()
    expect(other, "kept\n" + lines(2, 3))
    talker.finish()


def other_job(world):
    talker = Talker(world).run()
    talker.say()
    talker.dump()
    first_name, first_log = talker.name, talker.log
    talker.name = "other-job"
    talker.log = world.state / "data" / "jobs" / talker.name / "log"
    talker.restore()
    talker.say()
    expect(first_log, lines(1, 1))
    expect(talker.log, lines(2, 2))
    # The first job's log may be deleted with its job.
    talker.dump()
    world.stasis("delete", first_name)
    talker.restore()
    talker.say()
    expect(talker.log, lines(2, 3))
    talker.finish()


def after_delete(world):
    """The image alone suffices: the job, its directory and its log are gone."""
    talker = Talker(world).run()
    talker.say()
    talker.dump()
    world.stasis("delete", talker.name)
    talker.restore()
    talker.say()
    expect(talker.log, lines(2, 2))
    talker.finish()


def by_hand_redirected(world):
    """`prog > out.log` and --log: output that went to the file goes to the log from then on."""
    talker = Talker(world)
    out, log = talker.folder / "out", talker.folder / "log"
    with open(out, "wb") as file:
        talker.spawn(file)
    talker.say()
    talker.dump()
    talker.restore("--log", log)
    talker.say()
    expect(out, lines(1, 1))
    expect(log, lines(2, 2))
    talker.finish()


def by_hand_pipe(world):
    """`prog | less`: a log replaces the pipe and is appended to; it needs no reader."""
    talker = Talker(world)
    talker.spawn(subprocess.PIPE)
    talker.say()
    log = talker.folder / "log"
    log.write_text("kept, and longer than what comes\n")
    talker.dump()
    talker.restore("--log", log)
    talker.say()
    talker.kill_shim()
    talker.say()
    expect(log, "kept, and longer than what comes\n" + lines(2, 3))
    os.truncate(log, 0)
    talker.say()
    expect(log, lines(4, 4))
    talker.finish()


def many_writers(world):
    """Children, and closed, reopened or duplicated streams: the order is kept, even after a
    restore."""
    each = ("echo a; (exec >>/dev/stdout; echo b); sh -c 'echo c >&2; (echo d) & wait';"
            " echo e >&3; exec 4>&1 1>&-; exec 1>&4 4>&-; echo f; echo g >>/dev/stderr")
    talker = Talker(world, before="exec 3>&1", each=each).run()
    talker.say()
    talker.dump("--leave-running")
    talker.say()
    talker.kill()
    talker.restore()
    talker.say()
    expect(talker.log, "a\nb\nc\nd\ne\nf\ng\n" * 3)
    talker.finish()


def put_aside(world):
    """The log is open only under a non-standard number."""
    talker = Talker(world, before="exec 5>&1 1>/dev/null 2>&1", each="echo $i >&5").run()
    talker.say()
    talker.dump("--leave-running")
    talker.say()
    talker.kill()
    other = talker.folder / "other.log"
    talker.restore("--log", other)
    talker.say()
    expect(talker.log, "1\n2\n")
    expect(other, "2\n")
    talker.finish()


def read_by_itself(world):
    """A job that reads its own log keeps that file, and gets a note."""
    talker = Talker(world, before='exec 6<"$0"', each="echo $i; read -r y <&6; echo got $y")
    log = talker.folder / "own.log"
    talker.argv[3] = str(log)
    talker.run("--log", log)
    talker.say()
    done = talker.dump()
    demand("reads the job's log" in done.out, f"nothing is said:\n{done}")
    talker.restore()
    talker.say()
    expect(log, "1\ngot 1\n2\ngot got 1\n")
    talker.finish()


def own_append_file(world, how):
    """A log that the program itself opened for appending."""
    talker = Talker(world, before='exec 7>>"$0"', each="echo $i >&7")
    own = talker.folder / "training.log"
    talker.argv[3] = str(own)
    talker.run()
    talker.say()
    talker.dump("--leave-running")
    talker.say()
    talker.kill()
    if how == "emptied":
        os.truncate(own, 0)
    before = read(own)
    talker.restore()
    talker.say()
    expect(own, before + "2\n")
    talker.finish()


def shim_killed(world):
    """Without its shim the job's exit status is unknown; everything else works."""
    talker = Talker(world).run()
    talker.say()
    follow = world.begin("logs", "-f", talker.name)
    talker.kill_shim()
    talker.say()
    job = talker.listed()
    demand(job["state"] == "running" and not job["shim"], f"`stasis ps` says {job}")
    demand("running, no shim" in world.stasis("ps").out, "`stasis ps` does not say that its shim is gone")
    wait_until(lambda: follow.out == lines(1, 2), 90, lambda: f"`stasis logs -f` shows {follow.out}")
    talker.dump("--leave-running")
    talker.say()
    waiting = world.begin("wait", talker.name)
    talker.kill()
    waiting.wait()
    demand(waiting.code == 1 and "with an unknown exit code" in waiting.err, f"{waiting}")
    demand(follow.wait().code == 0, f"{follow}")
    demand(talker.listed()["state"] == "lost", "it is not lost")
    talker.restore()
    talker.say()
    expect(talker.log, lines(1, 3) + lines(3, 3))
    demand(talker.listed()["shim"], "it has no shim after its restore")
    # Dumped without a shim: the dump is recorded nevertheless.
    talker.kill_shim()
    talker.dump()
    demand(world.stasis("wait", talker.name, expect=None).code == 75, "it was not dumped")
    talker.restore()
    talker.say()
    expect(talker.log, lines(1, 3) + lines(3, 4))
    talker.finish()


def followed(world):
    """`stasis logs -f` and `restore --attach` show new output and end with the job."""
    talker = Talker(world).run()
    follow = world.begin("logs", "-f", talker.name)
    talker.say()
    wait_until(lambda: follow.out == lines(1, 1), 90, lambda: f"`stasis logs -f` shows {follow.out}")
    talker.dump()
    demand(follow.wait().code == 0, f"{follow}")
    other = talker.folder / "other.log"
    other.write_text("of another time\n")
    attached = world.begin("restore", talker.image, "--job", talker.name, "--attach", "--log", other)
    wait_until(lambda: talker.listed()["state"] == "running" or attached.process.poll() is not None, 90,
               lambda: f"it is not restored: {attached}")
    follow = world.begin("logs", "-f", talker.name)
    talker.say()
    for command, text in ((attached, lines(2, 2)), (follow, "of another time\n" + lines(2, 2))):
        wait_until(lambda: command.out == text, 90, lambda: f"it shows {command}")
    talker.world.own(talker.pid)
    with open(talker.go, "w") as go:
        go.write("end\n")
    demand(attached.wait().code == 9, f"{attached}")
    demand(follow.wait().code == 0, f"{follow}")
    talker.await_gone()
    world.stasis("delete", talker.name)


def not_a_log(world):
    talker = Talker(world)
    for path in ("/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1"):
        refused = world.stasis("run", "--log", path, "--", "echo", "lost", expect=2)
        demand("names a descriptor" in refused.err, f"{refused}")
    refused = world.stasis("run", "--log", talker.go, "--", "true", expect=2)
    demand("is a pipe" in refused.err, f"{refused}")
    talker.run()
    talker.dump()
    refused = world.stasis("restore", talker.image, "--log", talker.go, expect=2)
    demand("is a pipe" in refused.err, f"{refused}")
    talker.restore()
    talker.say()
    talker.finish()


CASES = [
    *((changed_log, change, own) for change in (as_it_was, grown, emptied, gone, renamed, replaced)
      for own in (False, True)),
    *((ran_on, change) for change in (as_it_was, emptied, gone, renamed)),
    *((before_the_dump, change) for change in (emptied, gone, renamed, replaced)),
    (other_log,), (other_job,), (after_delete,), (by_hand_redirected,), (by_hand_pipe,),
    (many_writers,), (put_aside,), (read_by_itself,),
    (own_append_file, "grown"), (own_append_file, "emptied"),
    (shim_killed,), (followed,), (not_a_log,),
]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
