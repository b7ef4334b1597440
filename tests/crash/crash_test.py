"""crash_test.py --build DIR [--only TEXT] [--all] [--thorough]: simulates a power failure at any
moment of a dump, a delete or a gc.

The real commands run under a recorder (record.c). From its record disk.py derives the possible
contents of the disk after every record: unsynced changes may be lost, torn and reordered. States
that differ only in pending changes are sampled with a fixed seed: some by default, more with --all,
nearly all with --thorough. On each state the real commands must find that:

- every promise is kept: images of finished dumps exist, and deleted images do not
- every named image is intact, by `image verify`
- `image gc` removes the rest and damages no image

On some states a program is also dumped and restored.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import disk as disks  # noqa: E402
import isolate  # noqa: E402
import processes  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

MIB = 1 << 20
SEED = 11
# The number of changes that are missing, torn or alone before each sync, and the number of states
# examined with the same images: these differ only in files that gc removes.
SOME, ALL, THOROUGH = (3, 2), (12, 6), (1000, 1000)


class Recorded:
    """A store, and the commands recorded on it."""

    def __init__(self, world, name, store="store"):
        self.world, self.name = world, name
        self.root = world.folder / f"root-{name}"
        self.root.mkdir(exist_ok=True)
        self.store = self.root / store
        self.below = store.split("/")
        self.problems = 0
        self.from_promise = 0  # skip states before this many promises
        self.not_ours = set()  # images written by other processes, synced or not

    def begin(self):
        self.log = self.world.folder / f"{self.name}.record"
        self.log.write_bytes(b"")
        self.disk = disks.Disk(self.root)
        self.before = self.visible(self._live(self.disk.top))
        return self

    def env(self, kill=None, eio_of=None):
        env = {"LD_PRELOAD": str(self.world.build / "tests" / "libcrash_record.so"),
               "STASIS_RECORD_ROOT": str(self.disk.root), "STASIS_RECORD_LOG": str(self.log)}
        faults = {"STASIS_RECORD_KILL": kill, "STASIS_RECORD_EIO_OF": eio_of}
        return {**env, **{name: str(n) for name, n in faults.items() if n}}

    def stasis(self, *args, kill=None, eio_of=None):
        self.world.stasis(*args, env=self.env(kill, eio_of), expect=-9 if kill else 1 if eio_of else 0)
        if not kill:
            self._say()

    def copy(self, source, to):
        done = subprocess.run(["cp", "-a", "--reflink=never", source, to], cwd=self.store,
                              env={**os.environ, **self.env()}, check=False)
        demand(done.returncode == 0, "cp fails")

    def _say(self):
        with open(self.log, "ab") as file:
            file.write(disks.HEADER.pack(disks.MAGIC, disks.SAID, 0, 0, 0, 0, 0, 0))

    def end(self):
        self.disk.read(self.log, self.visible)
        self.disk.check_record()
        return self

    def _live(self, node):
        return {n: self._live(c) if c.is_folder else c for n, c in node.entries.items()}

    def visible(self, tree):
        for name in self.below:
            tree = tree.get(name, {})
        return {n for n, found in tree.items() if not n.startswith(".") and isinstance(found, dict)}

    def owed(self, state):
        """Returns the images that must exist, and those that must not."""
        live = self.visible(self.disk.tree(disks.State(state.cut, self.disk.pending(state.cut), {}, "")))
        promised = self.disk.promised(state.cut)
        promised = self.before if promised is None else promised
        return frozenset(promised & live), frozenset(self.before - promised - live)

    def states(self, most):
        """Returns the states that differ in content or promises, each with its tree."""
        seen, alike = set(), {}
        first = self.disk.said[self.from_promise - 1][0] if self.from_promise else 0
        for state in self.disk.states(SEED, first, most[0]):
            tree = self.disk.tree(state)
            owed = self.owed(state)
            whole = (owed, self.disk.signature(tree))
            images = (owed, self.disk.signature(tree, self._matters_little))
            if whole in seen or alike.get(images, 0) >= most[1]:
                continue
            seen.add(whole)
            alike[images] = alike.get(images, 0) + 1
            yield state, tree

    def _matters_little(self, path):
        return "/." in f"/{path}" or path.split("/")[len(self.below):][:1] in [[n] for n in self.not_ours]

    def check(self, state, tree):
        """Describes the error of a state, or returns ''. Keeps a few directories with errors."""
        if self.problems > 2:
            return ""
        visible = self.visible(tree)
        there, gone = self.owed(state)
        wrong = [f"image {n} is not there any more" for n in there - visible]
        wrong += [f"image {n} is there again" for n in gone & visible]
        folder = self.world.folder / f"state-{id(state)}"
        self.disk.put(tree, folder)
        store = folder.joinpath(*self.below)

        def run(*words, expect=0):
            done = subprocess.run([self.world.bin / "stasis", "image", *words], env=self.world.env,
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=90,
                                  check=False)
            if done.returncode != expect:
                wrong.append(f"`image {' '.join(map(str, words))}` ends with {done.returncode}: {done.stdout}{done.stderr}")
            return done.stdout

        def verify_all():
            for name in sorted(visible - self.not_ours):
                run("verify", store / name)
        verify_all()
        if not wrong and store.is_dir():
            freed = json.loads(run("gc", "-d", store, "--json") or "{}")
            left = sorted(os.listdir(store))
            if left != sorted(visible):
                wrong.append(f"after gc the store holds {left}")
            if freed.get("left_alone") and not self.not_ours:
                wrong.append(f"gc leaves alone {freed['left_alone']}")
            if freed.get("removed") or freed.get("freed_units"):
                verify_all()
        if wrong:
            self.problems += 1
            return f"{self.name}, cut behind record {state.cut}, {state.why} ({folder}):\n  " + "\n  ".join(wrong)
        shutil.rmtree(folder)
        return ""

    def check_all(self, most):
        count, problems = 0, []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for problem in pool.map(lambda pair: self.check(*pair), list(self.states(most))):
                count += 1
                problems += [problem] if problem else []
        print(f"{self.name}: {self.disk.records} records, {len(self.disk.syncs)} of them syncs that mattered, "
              f"{count} states{f', {len(problems)} of them wrong' if problems else ''}", flush=True)
        demand(count > 1, f"{self.name}: almost nothing was recorded")
        demand(not problems, lambda: "\n".join(problems[:3]))

    def last_state(self, name):
        """Returns what must be on the disk at the end, as a directory with the store."""
        state = disks.State(self.disk.records, [], {}, "")
        folder = self.world.folder / name
        self.disk.put(self.disk.tree(state), folder)
        return folder.joinpath(*self.below)


def drift(world):
    return Program(world, "one", world.build / "tests" / "image_drift",
                   ["--memory", 16 * MIB, "--interval", 5, "--port", 1]).run()


class Cases:
    """Each step leaves its store for the next one."""

    def __init__(self, world, only, most):
        self.world, self.only, self.most = world, only, most
        self.program = drift(world)

    def dump(self, recorded, name, *options, **fault):
        recorded.stasis("dump", "one", "--name", name, "-d", recorded.store, *options, **fault)

    def done(self, recorded):
        recorded.end()
        if self.only in recorded.name:
            recorded.check_all(self.most)

    def first_dump_into_a_new_folder(self):
        first = Recorded(self.world, "first-dump", "new/folder/store").begin()
        self.dump(first, "a", "--leave-running")
        demand(len(os.listdir(first.store / "a" / "packs")) > 1, "the dump wrote one pack only")
        self.done(first)
        self.store = first

    def again(self, name):
        """Uses the same store with another record."""
        again = Recorded(self.world, name)
        again.root, again.store, again.below = self.store.root, self.store.store, self.store.below
        return again.begin()

    def dump_that_shares(self):
        second = self.again("second-dump")
        self.dump(second, "b", "--leave-running", "--compress", "lz4")
        demand(os.stat(next((second.store / "a" / "packs").iterdir())).st_nlink == 2, "nothing is shared")
        self.done(second)
        # Such a disk is usable: a program can be dumped to it and share blocks.
        store = second.last_state("dumped-to")
        self.program.dump("--leave-running", "-d", store, "--json", name="again")
        demand(self.world.last.json()["stored"]["shared_bytes"] > 13 * MIB, "it shares nothing")
        self.world.stasis("image", "verify", store / "again")

    def last_sync_fails(self):
        """The image already has its name, and loses it again."""
        failed = self.again("last-sync-fails")
        self.dump(failed, "x", "--leave-running", eio_of=failed.store)
        demand("sync the store" in self.world.last.err, lambda: f"another sync failed: {self.world.last}")
        self.done(failed)

    def copied_image(self):
        """cp syncs nothing; a dump that shares with the copy must not rely on it."""
        copied = self.again("copied-image")
        copied.copy("b", "c")
        copied.stasis("image", "delete", "-d", copied.store, "a", "b")
        self.dump(copied, "d", "--leave-running")
        demand(any(p.stat().st_nlink == 2 for p in (copied.store / "d" / "packs").iterdir()), "nothing is shared")
        copied.from_promise, copied.not_ours = 1, {"c"}
        self.done(copied)

    def delete(self):
        deleted = self.again("delete")
        deleted.stasis("image", "delete", "-d", deleted.store, "c")
        self.done(deleted)

    def killed_delete_and_gc(self):
        """The delete dies before its sync; gc sweeps what it hid."""
        self.world.stasis("dump", "one", "--name", "e", "-d", self.store.store, "--leave-running")
        killed = self.again("killed-delete")
        killed.stasis("image", "delete", "-d", killed.store, "d", kill=1)
        demand(any(n.startswith(".d.deleted") for n in os.listdir(killed.store)), "it was not killed where it should be")
        killed.stasis("image", "gc", "-d", killed.store)
        self.done(killed)

    def gc_makes_holes(self):
        for name, more in (("f", ["--full"]), ("g", [])):
            self.world.stasis("dump", "one", "--name", name, "-d", self.store.store, "--leave-running", *more)
        self.world.stasis("image", "delete", "-d", self.store.store, "e", "f")
        holes = self.again("gc")
        holes.stasis("image", "gc", "-d", holes.store, "--json")
        demand(self.world.last.json()["freed_units"] > 0, lambda: f"gc frees nothing: {self.world.last}")
        self.done(holes)

    def dump_that_ends_the_program(self):
        last = self.again("dump-and-end")
        self.dump(last, "last")
        self.program.await_gone()
        self.done(last)
        # A program can be restored from what must be on the disk.
        self.program.restore(str(last.last_state("restored-from") / "last"))
        self.program.expect_running()

    def run(self):
        self.first_dump_into_a_new_folder()
        self.dump_that_shares()
        self.last_sync_fails()
        self.copied_image()
        self.delete()
        self.killed_delete_and_gc()
        self.gc_makes_holes()
        self.dump_that_ends_the_program()
        self.program.finish()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", dest="most", action="store_const", const=ALL, default=SOME)
    parser.add_argument("--thorough", dest="most", action="store_const", const=THOROUGH)
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    world = World(options.build)
    world.env["STASIS_PACK_SIZE"] = "1MiB"  # several packs per dump
    try:
        Cases(world, options.only, options.most).run()
        world.expect_clean()
        world.close()
    except Exception as error:  # noqa: BLE001 - for any error, the last commands are printed
        known = isinstance(error, (Failed, processes.Late))
        print(error if known else traceback.format_exc())
        print(f"The last commands:\n{world.transcript(6)}")
        return 1
    print("all tests passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
