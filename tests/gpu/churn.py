"""The steps of churn.sh."""

import argparse
import functools
import os
import pathlib
import shutil
import sys

from harness import Report, demand
from ride import Job, Machine

HERE = pathlib.Path(__file__).resolve().parent
DUMPS = int(os.environ.get("DUMPS", "4"))


def churn(machine):
    images = pathlib.Path(os.environ.get("SHM", "/dev/shm")) / "stasis-churn"
    shutil.rmtree(images, ignore_errors=True)
    job = Job(machine, "churn", [sys.executable, str(HERE / "torch_churn.py")])
    try:
        job.wait_ready(60)
        job.wait_rounds(5, 60)
        for number in range(1, DUMPS + 1):
            account = job.verb("dump", "churn", "--leave-running", "-d", str(images), "--name", f"d{number}",
                               timeout_s=90).json()
            phases = {phase["name"]: phase for phase in account["phases"]}
            ahead = phases["data-precopy"]
            machine.report.number(f"dump {number}: pause", account["pause_s"], "s")
            machine.report.number(f"dump {number}: copied ahead", ahead["bytes"] / 2**30, "GiB")
            machine.report.number(f"dump {number}: data-save", phases["data-save"]["seconds"], "s")
            demand("copied ahead" not in str(account.get("notes")), f"{account.get('notes')}")
            job.wait_rounds(3, 60)
            if number < DUMPS:
                machine.stasis(None, "image", "delete", f"d{number}", "-d", str(images))
        job.verb("kill", "churn", "--signal", "KILL")
        machine.stasis(None, "wait", "churn", expect=None)
        job.restore(str(images / f"d{DUMPS}"))
        job.wait_rounds(3, 60)
        job.finish()
        return f"{job.output.count()} rounds, all right"
    finally:
        machine.stasis(None, "kill", "churn", expect=None)
        shutil.rmtree(images, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "180")), "churn")
    machine = Machine(options.dist, report, False)
    report.step("churn", 170, functools.partial(churn, machine))
    machine.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
