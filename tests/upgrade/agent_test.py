#!/usr/bin/env python3
"""Programs under agents of earlier versions are suspended, resumed, dumped and restored by this
version, on the shared path."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402


def by_the_data_plane(world, verb, *words):
    account = world.stasis(verb, *words, "--json").json()
    demand(account["shared_bytes"] > 0, lambda: f"the driver carried all of it: {world.last}")


def a_life(world, agent):
    program = Program(world, agent.parent.name, "vector", ["--memory", "16M", "--interval", "10"])
    # Starts softgpu's broker outside of any program.
    world.stasis("gpu", "ls")
    program.spawn(env={"LD_PRELOAD": str(agent)})
    program.expect_running()
    for _ in range(2):
        by_the_data_plane(world, "suspend", program.target)
        by_the_data_plane(world, "resume", program.target)
        program.expect_running()
    by_the_data_plane(world, "suspend", program.target, "--keep-context")
    by_the_data_plane(world, "resume", program.target)
    program.expect_running()
    program.dump("--leave-running", name=f"first-{program.name}")
    program.expect_running()
    program.dump(name=f"second-{program.name}")
    program.restore()
    program.expect_running()
    by_the_data_plane(world, "suspend", program.target)
    by_the_data_plane(world, "resume", program.target)
    program.expect_running()
    program.finish()


def run(world):
    agents = sorted(HERE.glob("agents/*/libstasis-agent.so"))
    demand(agents, "there are no agents of earlier versions")
    for agent in agents:
        a_life(world, agent)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
