"""Runs torch_split.py once for each GPU, each in a child process that sees only that GPU; this
process uses none.

  --processes N   number of processes
  --cache GIB     for each
  --churn         for each

A round consists of one round of each child; its checksum covers theirs.
"""

import hashlib
import os
import pathlib
import signal
import subprocess
import sys

from protocol import Protocol


def options(parser):
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", default="1")
    parser.add_argument("--churn", action="store_true")


def line_of(process, kind):
    """Returns the words after the next line of that kind."""
    for line in process.stdout:
        first, *words = line.split() or [""]
        if first == kind:
            return words
        print(line, end="", file=sys.stderr, flush=True)
    raise SystemExit(f"a process has ended in the middle: exit code {process.wait()}")


def begun(gpu, given):
    script = pathlib.Path(__file__).with_name("torch_split.py")
    words = ["--gpus", "1", "--cache", given.cache, *(["--churn"] if given.churn else [])]
    # Like torchrun: by default each process would use threads for all processors, which busy-wait
    # for work.
    threads = max(1, (os.cpu_count() or 1) // given.processes)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "OMP_NUM_THREADS": str(threads)}
    # A pipe holds 64 KiB, about 2000 rounds, which limits the distance between the children.
    return subprocess.Popen([sys.executable, script, *words], env=env, stdout=subprocess.PIPE, text=True)


def main():
    protocol = Protocol(options)
    protocol.imported()
    processes = [begun(gpu, protocol.options) for gpu in range(protocol.options.processes)]
    for process in processes:
        line_of(process, "READY")
    protocol.ready()
    for number in protocol.rounds():
        sums = [line_of(process, "ROUND") for process in processes]
        if any(int(theirs) != number for theirs, _ in sums):
            raise SystemExit(f"rounds {sums} in the place of {number}")
        protocol.print_round(number, hashlib.sha256(" ".join(s for _, s in sums).encode()).hexdigest()[:16])
    for process in processes:
        process.send_signal(signal.SIGTERM)
    ends = [line.strip() for process in processes for line in process.stdout if line.startswith(("EXIT", "FAILED"))]
    codes = [process.wait() for process in processes]
    protocol.finish(ends == ["EXIT-SUCCESS"] * len(processes) and not any(codes), f"{ends}, exit codes {codes}")


if __name__ == "__main__":
    main()
