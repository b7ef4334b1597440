"""Shared code of the tests of bad input: a command must be rejected with one clear message and the
right exit code, and nothing may change."""

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

# Words that must not appear in a message.
UNCOUTH = ("terminate called", "Assertion", "what():", "std::", "Segmentation", "CLI::", "tl::")


class Bench:
    def __init__(self, build):
        self.world = World(build)
        self.failed = []
        self.count = 0
        self.all = False  # run all cases of a long list instead of some

    def snapshot(self):
        """Returns everything that a rejected command must not change: files with their contents,
        and jobs."""
        found = {}
        for top in (self.world.state, self.world.folder / "tmp"):
            for folder, _, files in os.walk(top):
                for name in files:
                    path = os.path.join(folder, name)
                    if name.endswith((".log", "log", ".lock")) or "/run" in folder[len(str(top)):]:
                        continue
                    if name.startswith(".jobs.db"):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        info = os.lstat(path)
                        found[path] = (info.st_size, info.st_mode, info.st_mtime_ns)
        return {**found, **self.remembered()}

    def remembered(self):
        """Returns the content of the job database, without the columns that a command changes by only reading a job."""
        path = self.world.state / "data" / "jobs" / ".jobs.db"
        if not path.exists():
            return {"jobs": "[]", "checkpoints": "[]"}  # created on demand
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
        try:
            return {"jobs": str(database.execute("SELECT id, argv, cwd, log, agent FROM job ORDER BY id").fetchall()),
                    "checkpoints": str(database.execute("SELECT * FROM checkpoint").fetchall())}
        finally:
            database.close()

    def refused(self, words, code, *texts, env=None, program=None, before=None):
        """`code` is one or several exit codes. Each of `texts` must be in the message."""
        self.count += 1
        before = before or self.snapshot()
        command = self.world.stasis(*words, expect=None, env=env) if program is None else \
            self.world.begin(*words, env=env, program=program).wait()
        self.world.last = command
        codes = code if isinstance(code, tuple) else (code,)
        demand(command.code in codes, lambda: f"exit code {command.code}, not {code}:\n{command}")
        demand(command.err.startswith("stasis: "), lambda: f"not a message of Stasis:\n{command}")
        demand(len(command.err.splitlines()) <= 6, lambda: f"too many words:\n{command}")
        demand(command.out == "" or "--json" in words, lambda: f"output besides the message:\n{command}")
        for text in UNCOUTH:
            demand(text not in command.err, lambda: f"'{text}':\n{command}")
        for text in texts:
            demand(str(text) in command.err, lambda: f"the message lacks '{text}':\n{command}")
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
    """Returns a digest of every file below a directory."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def main(run, outside=None):
    """`outside` runs before the namespaces are entered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--all", action="store_true", help="run all cases of long lists")
    options = parser.parse_args()
    if outside is not None:
        outside(options.build)
        sys.stdout.flush()
    isolate.enter(isolate_keep(options.build))
    bench = Bench(options.build)
    bench.all = options.all
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
