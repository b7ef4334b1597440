"""cpu_ratio.py --build DIR: measures how long runc takes to checkpoint a container without a GPU, with and without the
plugin in CRIU. Prints the medians of ten checkpoints each, in turn, and their ratio. Not a test."""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import runc  # noqa: E402
from containers import skip_without  # noqa: E402

ROUNDS = 10


def compare(world):
    stage = runc.Runc(world)
    stage.keep_broker()
    container = runc.Container(stage, "cpu", "/usr/bin/sleep", "1000", agent=False).start()
    config = world.folder / "criu.conf"
    texts = {"with the plugin": config.read_text(), "without": "libdir /proc/self/task\n"}
    seconds = {name: [] for name in texts}
    for _ in range(ROUNDS):
        for name, text in texts.items():
            config.write_text(text)
            began = time.monotonic()
            container.checkpoint("--leave-running", images=stage.plugin.image_folder())
            seconds[name].append(time.monotonic() - began)
    container.kill()
    stage.end_broker()
    medians = [statistics.median(of) for of in seconds.values()]
    for name, median in zip(seconds, medians):
        print(f"{median:.3f} s  {name} ({min(seconds[name]):.3f} to {max(seconds[name]):.3f})")
    print(f"ratio {medians[0] / medians[1]:.2f}")


skip_without("runc")
sys.exit(cases.main([(compare,)]))
