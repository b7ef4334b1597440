"""example_test.py --build DIR: runs docs/examples/client.py unchanged against a real daemon."""

import pathlib
import sys

from daemon_fixture import DaemonFixture, demand, main

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "client.py"


def run(fixture, *words):
    command = fixture.world.begin("-B", CLIENT, "--socket", fixture.socket, *words, program="/usr/bin/python3",
                                env={"PYTHONPATH": str(fixture.world.build / "python")}).wait()
    fixture.world.reap()
    return command


def works(fixture: DaemonFixture):
    fixture.start()
    done = run(fixture, "--job", "job", fixture.world.workloads / "counter", "--memory", "8M")
    demand(done.code == 0, f"{done}")
    for words in (" MiB on the GPU", "gpu-checkpoint", "job has given up", "gpu-restore", "cpu-dump",
                  "`stasis restore job` brings it back"):
        demand(words in done.out, f"it does not print '{words}':\n{done}")
    demand([job["state"] for job in fixture.world.stasis("ps", "-a", "--json").json()["jobs"]] == ["dumped"], "no dump")
    fixture.world.stasis("restore", "job")
    # Errors are reported like on the command line.
    again = run(fixture, "--job", "job", "true")
    demand(again.code == 1 and "job" in again.err and "Traceback" not in again.err, f"{again}")
    fixture.world.stasis("kill", "job", "-s", "KILL")
    fixture.world.stasis("wait", "job", expect=137)
    fixture.world.stasis("delete", "job")


if __name__ == "__main__":
    sys.exit(main([works]))
