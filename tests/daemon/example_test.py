"""example_test.py --build DIR: runs docs/examples/client.py unchanged against a real daemon."""

import pathlib
import sys

from house import House, demand, main

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "client.py"


def run(house, *words):
    command = house.world.begin("-B", CLIENT, "--socket", house.socket, *words, program="/usr/bin/python3",
                                env={"PYTHONPATH": str(house.world.build / "python")}).wait()
    house.world.reap()
    return command


def works(house: House):
    house.start()
    done = run(house, "--job", "job", house.world.workloads / "counter", "--memory", "8M")
    demand(done.code == 0, f"{done}")
    for words in (" MiB on the GPU", "gpu-checkpoint", "job has given up", "data-return", "cpu-dump",
                  "`stasis restore job` brings it back"):
        demand(words in done.out, f"it does not print '{words}':\n{done}")
    demand([job["state"] for job in house.world.stasis("ps", "-a", "--json").json()["jobs"]] == ["dumped"], "no dump")
    house.world.stasis("restore", "job")
    # Errors are reported like on the command line.
    again = run(house, "--job", "job", "true")
    demand(again.code == 1 and "job" in again.err and "Traceback" not in again.err, f"{again}")
    house.world.stasis("kill", "job", "-s", "KILL")
    house.world.stasis("wait", "job", expect=137)
    house.world.stasis("delete", "job")


if __name__ == "__main__":
    sys.exit(main([works]))
