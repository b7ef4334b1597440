"""The steps of nccl.sh; see there."""

import argparse
import functools
import os
import pathlib
import re
import sys
import time

from harness import Report, StepFailed, demand, is_alive, run, wait_until
from ride import Job, Machine, descendants, sequence_is_whole

RANKS = pathlib.Path(__file__).resolve().parent / "nccl_ranks.py"

SETTINGS = {
    "defaults": {},
    "host-files": {"NCCL_CUMEM_HOST_ENABLE": "0"},
    "legacy-ipc": {"NCCL_CUMEM_ENABLE": "0"},
    "no-p2p": {"NCCL_P2P_DISABLE": "1"},
    "plain-driver": {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"},
}


def transports(job):
    """What NCCL says it uses between the ranks."""
    return ", ".join(sorted(set(re.findall(r" via (\S+)", job.output.text())))) or "not said"


def account_line(account):
    return (f"{account['verb'] if 'verb' in account else ''} {account['total_s']:.3f} s, path {account['path']}, by us "
            f"{account['shared_bytes']:,} bytes, by the driver {account.get('driver_bytes', 0):,} of "
            f"{account['device_bytes']:,}")


def stack(machine, job):
    for pid in [job.pid, *descendants(job.pid)]:
        run(["sh", "-c", f"cat /proc/{pid}/wchan; for t in /proc/{pid}/task/*; do echo $t $(cat $t/comm $t/wchan); done"],
            5, machine.log(machine.report.step_name))


def ranks(machine, name, settings, *words, dump=True):
    report = machine.report
    job = Job(machine, name, [sys.executable, RANKS, *words],
              env={**settings, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,GRAPH"})
    notes = []
    try:
        job.wait_ready(120)
        job.wait_rounds(5, 60)
        notes.append(f"transports: {transports(job)}")
        for _ in range(3):
            down = job.verb("suspend", name, "--timeout", "30")
            demand(not job.gpu_files(), f"suspended, but it still holds {job.gpu_files()}")
            before = job.output.count()
            time.sleep(0.3)
            demand(job.output.count() <= before + 1, "it goes on although it is suspended")
            up = job.verb("resume", name, "--timeout", "30")
            job.wait_rounds(5, 60)
        notes += [account_line(down.json()), account_line(up.json())]
        if dump:
            image = machine.images / name
            job.verb("dump", name, "-d", machine.images, "--name", name, "--tcp", "keep")
            wait_until(lambda: not is_alive(job.pid), 20, "the end of the dumped program")
            restored = job.verb("restore", image, "--log", job.output.path, "--tcp", "keep")
            notes.append(account_line(restored.json()))
            job.wait_rounds(5, 60)
        job.finish()
        sequence_is_whole(job.output)
        report.facts[f"rounds of {name}"] = job.output.count()
        return "\n".join(notes)
    except StepFailed as failure:
        stack(machine, job)
        raise StepFailed("\n".join([*notes, str(failure)])) from failure
    finally:
        job.kill()
        time.sleep(0.5)
        machine.stasis(None, "recover", timeout_s=30, expect=None)


def main():
    parser = argparse.ArgumentParser(prog="nccl.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "400")), "nccl")
    machine = Machine(options.dist, report, False)
    steps = [(name, functools.partial(ranks, machine, name, settings)) for name, settings in SETTINGS.items()]
    # As a model that is cut over GPUs does it: many collectives are under way when the gates close.
    steps.append(("ahead", functools.partial(ranks, machine, "ahead", SETTINGS["host-files"], "--ahead", "50",
                                             "--megabytes", "4", "--interval", "0")))
    for name, function in steps:
        if not options.steps or any(name.startswith(prefix) for prefix in options.steps):
            report.step(name, 110, function)
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
