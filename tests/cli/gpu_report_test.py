#!/usr/bin/env python3
"""`stasis check --gpu amd --report FILE` on a software GPU: all steps, failures, and what is left."""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
import schemas  # noqa: E402
from world import demand  # noqa: E402

# A software GPU has neither a kernel driver nor DMA buffers.
HARDWARE_ONLY = {"kernel-driver", "kfd", "render-nodes", "dma-buffer"}
MAX_BYTES = 1 << 20


def report(world, expect, env=None):
    """Runs the checks. Returns the steps by id."""
    file = world.folder / "report.json"
    file.unlink(missing_ok=True)
    command = world.begin("check", "--gpu", "amd", "--report", file, "--json", env=env or {}).wait(600)
    demand(command.code == expect, lambda: f"exit code {command.code}: {command}")
    demand(file.stat().st_size <= MAX_BYTES, "the file is too large")
    document = json.loads(file.read_text())
    demand(document == command.json(), "the file and the document differ")
    if schemas.is_able():
        schemas.compare("gpu-report", document)
    demand(document["passed"] == (expect == 0) and not document["unfinished"], str(document))
    left = list((world.folder / "tmp").iterdir())
    demand(not left, f"left: {left}")
    return {step["id"]: step for step in document["steps"]}


def failed(steps):
    return {name for name, step in steps.items() if step["verdict"] == "failed"}


def everything_works(world):
    steps = report(world, 0)
    skipped = {name for name, step in steps.items() if step["verdict"] == "skipped"}
    demand(skipped == HARDWARE_ONLY, lambda: f"skipped: {[steps[name] for name in skipped]}")
    demand("says nothing about AMD GPUs" in steps["stasis-gpus"]["message"], str(steps["stasis-gpus"]))
    for name in ("resume-1", "resume-2", "resume-3", "restore", "resume-4"):
        demand("contents verified" in steps[name]["message"], str(steps[name]))
    demand(steps["dump"]["result"]["verb"] == "dump", str(steps["dump"]))


def failures(world):
    # Without the library only the machine is described.
    steps = report(world, 5, {"LD_LIBRARY_PATH": ""})
    demand({"hip-library", "kfd", "kernel-driver"} <= failed(steps), str(failed(steps)))
    demand(steps["run"]["message"] == "needs the step hip-library", str(steps["run"]))
    demand("cannot be loaded" in steps["hip-library"]["message"], str(steps["hip-library"]))
    # Without CRIU everything else is checked.
    steps = report(world, 5, {"STASIS_CRIU": "/bin/false"})
    demand(failed(steps) == {"check", "dump"}, str(failed(steps)))
    demand(steps["end"]["verdict"] == "passed" and "CRIU" in steps["dump"]["message"], str(steps["dump"]))
    # A failure in the program itself.
    steps = report(world, 5, {"SOFTGPU_FAULT": "hipMemUnmap:1=fail(999)"})
    demand("old-address" in failed(steps) and "999" in steps["old-address"]["message"], str(steps["old-address"]))


def usage(world):
    no_file = world.stasis("check", "--gpu", "amd", expect=2)
    demand("stasis check --gpu amd --report FILE" in no_file.err, str(no_file))
    world.stasis("check", "--report", "x", expect=2)
    world.stasis("check", "--gpu", "intel", "--report", "x", expect=2)
    world.stasis("check", "--gpu", "amd", "--report", "x", "--full", expect=2)
    nvidia = world.stasis("check", "--gpu", "nvidia", "--report", "x", expect=5)
    demand("there are no conformance checks for NVIDIA GPUs" in nvidia.err, str(nvidia))
    missing = world.stasis("check", "--gpu", "amd", "--report", "/nonexistent/x", expect=(1, 3))
    demand("write the report" in missing.err, str(missing))


def run(world):
    world.set_gpu(1, "256M")
    usage(world)
    everything_works(world)
    failures(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
