"""What the tests of bad input share: a command must be refused with one clear message and the right
exit code, and nothing may change."""

import argparse
import contextlib
import hashlib
import os
import pathlib
import sqlite3
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

__all__ = ["Bench", "Failed", "Program", "demand", "isolate", "main", "processes", "wait_until"]

# What no user should ever see.
UNCOUTH = ("terminate called", "Assertion", "what():", "std::", "Segmentation", "CLI::", "tl::")


class Bench:
    def __init__(self, build):
        self.world = World(build)
        self.failed = []
        self.count = 0
        self.part = (0, 1)

    def snapshot(self):
        """Everything that a refused command must leave as it was: files with their contents, jobs."""
        found = {}
        for top in (self.world.state, self.world.folder / "tmp"):
            for folder, _, files in os.walk(top):
                for name in files:
                    path = os.path.join(folder, name)
                    if name.endswith((".log", "log", ".lock")) or "/run" in folder[len(str(top)):]:
                        continue
                    if name.startswith(".jobs.db"):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # somebody else's, who has taken it away
                        info = os.lstat(path)
                        found[path] = (info.st_size, info.st_mode, info.st_mtime_ns)
        return {**found, **self.remembered()}

    def remembered(self):
        """What the database of jobs says, but for what whoever looks at a job puts there."""
        path = self.world.state / "data" / "jobs" / ".jobs.db"
        if not path.exists():
            return {"jobs": "[]", "checkpoints": "[]"}  # it is made when somebody asks
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
        try:
            return {"jobs": str(database.execute("SELECT id, argv, cwd, log, agent FROM job ORDER BY id").fetchall()),
                    "checkpoints": str(database.execute("SELECT * FROM checkpoint").fetchall())}
        finally:
            database.close()

    def refused(self, words, code, *texts, env=None, program=None, before=None):
        """`code`: one or several. Each of `texts` must be in the message."""
        self.count += 1
        before = before or self.snapshot()
        command = self.world.stasis(*words, expect=None, env=env) if program is None else \
            self.world.begin(*words, env=env, program=program).wait()
        self.world.last = command
        codes = code if isinstance(code, tuple) else (code,)
        demand(command.code in codes, lambda: f"exit code {command.code}, not {code}:\n{command}")
        demand(command.err.startswith("stasis: "), lambda: f"not a message of ours:\n{command}")
        demand(len(command.err.splitlines()) <= 6, lambda: f"too many words:\n{command}")
        demand(command.out == "" or "--json" in words, lambda: f"output beside the message:\n{command}")
        for text in UNCOUTH:
            demand(text not in command.err, lambda: f"'{text}':\n{command}")
        for text in texts:
            demand(str(text) in command.err, lambda: f"the message does not say '{text}':\n{command}")
        after = self.snapshot()
        demand(before == after, lambda: f"it changed {sorted(set(before.items()) ^ set(after.items()))}:\n{command}")
        return command

    def case(self, name, function, *args, **named):
        try:
            function(*args, **named)
        except Exception as error:  # noqa: BLE001 - the other cases are run all the same
            self.failed.append(name)
            known = isinstance(error, (Failed, processes.Late))
            print(f"FAILED  {name}: {error if known else traceback.format_exc()}", flush=True)

    def close(self):
        self.world.expect_clean()
        self.world.close()


def contents(folder):
    """A digest of every file below a folder."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def main(run, outside=None):
    """`outside` runs before the namespaces are entered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--part", default="0/1", help="K/N: of a long list of cases every N-th, from the K-th on")
    options = parser.parse_args()
    if outside is not None:
        outside(options.build)
        sys.stdout.flush()
    isolate.enter(isolate_keep(options.build))
    bench = Bench(options.build)
    bench.part = tuple(map(int, options.part.split("/")))
    try:
        run(bench)
        bench.close()
    except Exception as error:  # noqa: BLE001
        known = isinstance(error, (Failed, processes.Late))
        print(error if known else traceback.format_exc())
        print(f"The last commands:\n{bench.world.transcript()}")
        bench.failed.append("the test itself")
    print(f"{bench.count} refusals, {len(bench.failed)} failed" + "".join(f"\n  {n}" for n in bench.failed))
    return 1 if bench.failed else 0
