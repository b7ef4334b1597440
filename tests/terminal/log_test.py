"""log_test.py --build DIR [--only WORD]: input and output of jobs without a terminal, and the size
limit of all logs."""

import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
from guest_job import GUEST, Job  # noqa: E402
from processes import wait_until  # noqa: E402
from screen import PATIENCE_S  # noqa: E402
from world import demand  # noqa: E402


def without_a_terminal(world):
    """Attaching still shows the job's log and its end; --watch forwards no signals."""
    job = Job(world)
    fifo = world.folder / "lines"
    os.mkfifo(fifo)
    job.start(program=["sh", "-c", f"exec python3 -B {GUEST[2]} < {fifo}"])
    with open(fifo, "w") as lines:
        job.await_log("ready no terminal")
        for i in range(3000):
            lines.write(f"{i} {'.' * 20}\n")
        lines.flush()
        job.await_log("heard 2999")
        attach = world.begin("attach", job.name)
        watch = world.begin("attach", "--watch", job.name)
        for command in (attach, watch):
            wait_until(lambda: "heard 2999" in command.out, PATIENCE_S, lambda: f"{command}")
            demand(command.out.startswith("heard 2") and len(command.out) < 20000, lambda: f"{command.out[:200]}")
        watch.process.send_signal(signal.SIGINT)
        demand(watch.wait().code == 0, f"{watch}")
        attach.process.send_signal(signal.SIGINT)
        wait_until(lambda: "interrupted" in attach.out, PATIENCE_S, lambda: f"{attach}")
        lines.write("exit 6\n")
        lines.flush()
        demand(attach.wait().code == 6, f"{attach}")
    fifo.unlink()
    job.finish()


SIGNALS = """import signal, time
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGRTMIN + 1):
    signal.signal(number, lambda got, _: print("got", got, flush=True))
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


def other_signals(world):
    """An attached `run` and an `attach` forward every signal that a user sends, and survive it."""
    job = Job(world)
    attached = world.begin("run", "--attach", "--no-agent", "--job", job.name, "--", "python3", "-c", SIGNALS)
    wait_until(lambda: "ready" in attached.out, PATIENCE_S, lambda: f"{attached}")
    again = world.begin("attach", job.name)
    wait_until(lambda: "ready" in again.out, PATIENCE_S, lambda: f"{again}")
    for command in (attached, again):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGRTMIN + 1):
            before = command.out.count(f"got {int(number)}\n")
            command.process.send_signal(number)
            wait_until(lambda: command.out.count(f"got {int(number)}\n") > before or command.process.poll() is not None,
                       PATIENCE_S, lambda: f"{command}")
            demand(command.process.poll() is None, lambda: f"signal {number} ended {command.wait()}")
    attached.process.send_signal(signal.SIGTERM)
    for command in (attached, again):
        demand(command.wait().code == 128 + signal.SIGTERM, f"{command}")
    job.finish()


def piped_input(world):
    """A pipe or file is the program's standard input, and does not prevent a dump."""
    for words in ("echo hello |", "echo hello > in; "):
        line = f"{words} stasis run -q --no-agent --attach -- cat" + ("" if "|" in words else " < in")
        demand(world.shell(line).out == "hello\n", f"{world.last}")
    (world.folder / "in").unlink()
    job = Job(world)
    read, write = os.pipe()
    child = subprocess.Popen([world.bin / "stasis", "run", "-q", "--attach", "--no-agent", "--job", job.name, "--",
                              *GUEST], stdin=read, stdout=subprocess.PIPE, env=world.env, cwd=world.folder)
    world.own(child.pid)
    os.close(read)
    os.write(write, b"first\n")
    job.await_log("heard first")
    job.dump()
    demand(child.wait(PATIENCE_S) == 75, "it was not dumped")
    world.disown(child.pid)
    child.stdout.close()
    os.close(write)
    # The program finds the end of its input and ends before it is adopted.
    hold = world.folder / "hold"
    hold.touch()
    restore = world.begin("restore", job.image, "--job", job.name, env={"STASIS_FAULT": f"adopt:before:hold={hold}"})
    job.await_log("end of input")
    hold.unlink()
    demand(restore.wait().code == 0, f"{restore}")
    demand(world.stasis("wait", job.name, expect=None).code == 0, f"{world.last}")
    delete_others(world, job.name)
    job.finish()


def delete_others(world, kept=None):
    for name in [j["id"] for j in world.stasis("ps", "-a", "--json").json()["jobs"] if j["id"] != kept]:
        world.stasis("wait", name)
        world.stasis("delete", name)


def without_io_uring(world):
    """PyTorch is told to do without libuv, unless the user has decided."""
    for given, seen in (("", "0"), ("USE_LIBUV=1 ", "1")):
        world.shell(f"{given}stasis run -q --no-agent --attach -- sh -c 'echo $USE_LIBUV'")
        demand(world.last.out == f"{seen}\n", f"{world.last}")
    delete_others(world)


# Prints numbered lines, as many as each line read from the named pipe $0 says.
COUNTER = """i=0
while read n <&3; do
  end=$((i+n)); while [ $i -lt $end ]; do echo "line $i ........................................................"; \
i=$((i+1)); done
done 3<> "$0" """


def bounded_log(world, terminal):
    """Only the end of the log is kept; followers lose nothing; after a restore it continues with
    the same limit."""
    job = Job(world)
    go, limit = world.folder / "go", {"STASIS_LOG_SIZE": "64KiB"}
    os.mkfifo(go)
    world.stasis("run", "--no-agent", "--job", job.name, *(["--tty"] if terminal else []), "--", "sh", "-c",
                 COUNTER, go, env=limit)
    log = job.folder / "log"
    follow = world.begin("logs", "-f", job.name)
    told = 0

    def more(lines):
        nonlocal told
        fd = os.open(go, os.O_RDWR)
        os.write(fd, f"{lines}\n".encode())
        told += lines
        wait_until(lambda: f"line {told - 1} ".encode() in log.read_bytes()[-200:], PATIENCE_S, "it does not write")
        os.close(fd)

    def numbers(text):
        return [int(n) for n in re.findall(r"^line (\d+) \.+\r?$", text, re.M)]

    def is_bounded():
        # Starts at the beginning of a line.
        wait_until(lambda: log.stat().st_blocks * 512 < 160 << 10, PATIENCE_S,
                   lambda: f"{log.stat().st_blocks * 512} bytes are kept")
        text = world.stasis("logs", job.name).out
        found = numbers(text)
        demand(text.startswith("line ") and len(text) >= 64 << 10, f"{len(text)}: {text[:100]!r}")
        demand(found == list(range(found[0], told)), "lines are missing")
        demand(world.stasis("logs", "--json", job.name).json()["text"] == text, "JSON has another text")

    demand("--keep-log" in job.shim_words(), "its shim does not bound it")
    for _ in range(20):
        more(500)
        wait_until(lambda: numbers(follow.out)[-1:] == [told - 1], PATIENCE_S, "logs -f does not follow")
    is_bounded()
    demand(log.stat().st_size > 512 << 10, "it was emptied")
    demand(numbers(follow.out) == list(range(told)), "logs -f has lost something")
    job.dump()
    demand(follow.wait().code == 0, f"{follow}")
    job.restore(env=limit)
    more(3000)
    is_bounded()
    go.unlink()
    job.finish()


def named_log_is_its_users(world):
    job = Job(world)
    log = world.folder / "own.log"
    job.start("--log", log, program=["sh", "-c", "seq 100000; exec sleep 1000"], env={"STASIS_LOG_SIZE": "64KiB"})
    wait_until(lambda: log.read_bytes().endswith(b"100000\n"), PATIENCE_S, "it does not write")
    demand("--keep-log" not in job.shim_words(), "the file of its user will be cut")
    log.unlink()
    job.finish()


CASES = [(without_a_terminal,), (other_signals,), (piped_input,), (without_io_uring,), (bounded_log, False), (bounded_log, True),
         (named_log_is_its_users,)]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
