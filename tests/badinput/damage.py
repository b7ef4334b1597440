"""A small image to be damaged: created once, and repaired after each case."""

import os
import shutil

from bench import Bench, Program, demand


class Subject:
    def __init__(self, bench: Bench):
        self.bench = bench
        self.world = bench.world
        self.program = Program(self.world, "job", "counter", ["--memory", "1M"]).run()
        self.program.expect_running()
        self.program.dump(name="good")
        self.good = self.world.images / "good"
        self.bad = self.world.folder / "bad"
        shutil.copytree(self.good, self.bad)
        self.files = sorted(p.relative_to(self.bad) for p in self.bad.rglob("*") if p.is_file())
        # A rejected restore changes no file. The directories are small, so a snapshot is cheap.
        self.before = bench.snapshot()

    def refused(self, verbs, code, *texts):
        for verb in verbs:
            words = {"restore": ["restore", self.bad, "--job", "job"], "verify": ["image", "verify", self.bad],
                     "inspect": ["image", "inspect", self.bad]}[verb]
            if verb == "restore":
                self.bench.refused(words, code, *texts, before=self.before)
            else:
                done = self.world.stasis(*words, expect=code)
                for text in texts:
                    demand(str(text) in done.err, f"the message lacks '{text}':\n{done}")

    def flip(self, name, offset, bit=0):
        """Changes one bit. Returns a function that restores it."""
        path = self.bad / name

        def turn():
            with open(path, "r+b", buffering=0) as file:
                byte = os.pread(file.fileno(), 1, offset)[0]
                os.pwrite(file.fileno(), bytes([byte ^ (1 << bit)]), offset)
        turn()
        return turn

    def put_right(self, name):
        path = self.bad / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.good / name, path)

    def close(self):
        """Checks that the copy is intact again and restores."""
        self.world.stasis("image", "verify", self.bad)
        self.world.stasis("restore", self.bad, "--job", "job")
        self.program.find_pid()
        self.program.expect_running()
        self.program.finish()
