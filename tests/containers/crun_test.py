"""crun_test.py --build DIR: crun's checkpoint and restore of GPU containers, by a crun that tools/crun.sh has built."""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import isolate  # noqa: E402
from runc import Runc  # noqa: E402
from runc_test import VECTOR, paused, there_and_back, under_another_id, with_runc  # noqa: E402

CRUN = pathlib.Path(__file__).resolve().parents[2] / ".cache" / "crun" / "crun"

UNIFIED = "/sys/fs/cgroup/unified"


def with_crun(world, test, *args):
    stage = Runc(world, configure=False, program=str(CRUN))
    # crun has no annotation for CRIU's configuration.
    stage.env["CRIU_LIBS_DIR"] = str(stage.plugin.folder)
    # crun refuses a machine that has controllers of both versions of control groups.
    hybrid = os.path.ismount(UNIFIED)
    if hybrid:
        isolate.mount("none", UNIFIED, "tmpfs")
    try:
        with_runc(world, test, *args, stage=stage)
    finally:
        if hybrid:
            isolate.unmount(UNIFIED)


CASES = [(with_crun, *case) for case in (
    (there_and_back, "vector", "agent"),
    (there_and_back, "vector", "driver"),
    (there_and_back, "tree", "agent"),
    (under_another_id,),
    (paused,),
    (paused, "--leave-running"),
)]

if __name__ == "__main__":
    if not shutil.which(CRUN):
        print(f"SKIPPED: {CRUN} is missing; `./run test nightly` or tools/crun.sh builds it (Debian's crun has no CRIU)")
        sys.exit(isolate.SKIPPED)
    sys.exit(cases.main(CASES))
