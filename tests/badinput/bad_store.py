"""Directories that cannot hold images or state, and state that Stasis did not write."""

import os
import sys

from bench import Bench, Program, demand, isolate, main


def read_only(bench):
    folder = bench.world.folder / "store-ro"
    folder.mkdir()
    isolate.mount("tmpfs", str(folder), "tmpfs", 1, "size=1G")  # MS_RDONLY
    bench.world._mounts.append(str(folder))
    try:
        yield_rows(bench, folder, (1, 4), "Read-only")
        yield_rows(bench, folder / "below", (1, 4), "Read-only")
    finally:
        isolate.unmount(str(folder))
        bench.world._mounts.remove(str(folder))
        folder.rmdir()


def yield_rows(bench, folder, code, *texts):
    for options in ([], ["--leave-running"]):
        bench.refused(["dump", "job", "-d", folder, *options], code, folder, *texts)


def a_file(bench):
    path = bench.world.folder / "file"
    path.write_text("not a folder")
    yield_rows(bench, path, (1, 2), "Not a directory")
    yield_rows(bench, path / "below", (1, 2), "Not a directory")
    demand(path.read_text() == "not a folder", "the file was changed")
    path.unlink()


def taken(bench):
    bench.world.stasis("dump", "job", "--leave-running", "--name", "taken")
    bench.refused(["dump", "job", "--name", "taken"], 7, "taken")
    bench.world.stasis("image", "verify", "taken")
    bench.world.stasis("image", "delete", "taken")


def bad_state_folder(bench):
    path = bench.world.folder / "file"
    path.write_text("not a folder")
    for verb in (["ps"], ["suspend", "job"], ["run", "--", "/bin/true"], ["recover"], ["image", "ls"]):
        bench.refused(verb, (1, 2), path, env={"STASIS_STATE_DIR": str(path)})
    path.unlink()


def bad_journal(bench):
    """An unreadable entry stops `recover`, which names it; other jobs are unaffected."""
    entry = bench.world.journal / "damaged.journal"
    for text in ("", "{", '{"version":1}', '{"version":99,"verb":"dump"}', "\0" * 100, "[]", "null"):
        entry.write_text(text + "\n")
        done = bench.world.stasis("recover", expect=(0, 6))
        if done.code == 6:
            demand("damaged.journal" in done.out + done.err, f"the message does not name the entry:\n{done}")
        bench.world.stasis("suspend", "job")
        bench.world.stasis("resume", "job")
        if entry.exists():
            entry.unlink()


def bad_job(bench):
    """A damaged record affects only its own job."""
    folder = bench.world.state / "data" / "jobs"
    bench.world.stasis("run", "--no-agent", "--job", "broken", "--", "true")
    bench.world.stasis("wait", "broken")
    for text in ("", "{", "[]", '{"version":99}', "\0" * 1000, '{"version":1,"boot_id":"x","root":5}'):
        (folder / "broken" / "process.json").write_text(text)
        done = bench.world.stasis("ps", "-a", "--json")
        jobs = done.json()
        demand([j["id"] for j in jobs["jobs"]] == ["job"], f"the good job is not shown alone:\n{done}")
        bench.refused(["suspend", "broken"], (1, 3, 5), "broken")
        bench.refused(["logs", "broken"], (1, 3, 5), "broken")
    bench.world.stasis("delete", "broken")


def run(bench: Bench):
    program = Program(bench.world, "job", "vector", ["--memory", "1M", "--interval", "20"]).run()
    for name, function in [("read-only", read_only), ("a file", a_file), ("a name that is taken", taken),
                           ("state folder", bad_state_folder), ("journal", bad_journal), ("job", bad_job)]:
        bench.case(name, function, bench)
        program.expect_running()
    program.finish()


if __name__ == "__main__":
    sys.exit(main(run))
