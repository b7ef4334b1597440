#!/usr/bin/env python3
"""`stasis image verify` and the independent reader agree on intact and on changed images.

Uses the golden images, unchanged and with one flipped bit, with truncated,
extended, exchanged and removed files: both must find an image intact, or neither.
"""

import glob
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import read_image  # noqa: E402

FLIPS = 30  # per image
ALL_FLIPS = 120


class BothReaders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def copies(self):
        goldens = sorted(glob.glob(os.path.join(HERE, "golden", "*")))
        self.assertGreater(len(goldens), 0)
        for golden in goldens:
            image = os.path.join(self.folder.name, os.path.basename(golden))
            shutil.copytree(golden, image)
            yield image, sorted(os.path.join(folder, name) for folder, _, names in os.walk(image) for name in names)

    def ask_both(self, image):
        """Returns whether each finds the image intact."""
        done = subprocess.run([STASIS, "image", "verify", image], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "STASIS_STATE_DIR": self.folder.name}, check=False)
        self.assertIn(done.returncode, (0, 1, 5), done.stderr)
        try:
            findings = read_image.verify(image)
        except (read_image.BadImage, OSError) as error:
            findings = [str(error)]
        self.assertEqual(done.returncode == 0, not findings, f"{done.stdout}{done.stderr}\nand {findings}")
        return not findings

    def test_flipped_bits(self):
        random.seed(9)
        flips = ALL_FLIPS if EVERY else FLIPS
        for image, files in self.copies():
            with self.subTest(image):
                self.assertTrue(self.ask_both(image))
                sizes = [os.path.getsize(f) for f in files]
                found = 0
                for path in random.choices(files, weights=[s ** 0.5 for s in sizes], k=flips):
                    at = random.randrange(os.path.getsize(path))
                    with open(path, "r+b", buffering=0) as file:
                        byte = os.pread(file.fileno(), 1, at)
                        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << random.randrange(8)]), at)
                        found += not self.ask_both(image)
                        os.pwrite(file.fileno(), byte, at)
                # The rest are in units of shared packs that this image does not use.
                self.assertGreater(found, flips * 0.8)
                self.assertTrue(self.ask_both(image))

    def test_files_cut_longer_exchanged_and_missing(self):
        def cut(path):
            os.truncate(path, os.path.getsize(path) // 2)

        def longer(path):
            with open(path, "ab") as file:
                file.write(b"\0")

        for image, files in self.copies():
            other = random.Random(1)
            for path in files:
                for change in (cut, longer, os.unlink):
                    if change is cut and os.path.getsize(path) == 0:
                        continue
                    with open(path, "rb") as file:
                        before = file.read()
                    change(path)
                    self.assertFalse(self.ask_both(image), f"{change.__name__} {path}")
                    with open(path, "wb") as file:
                        file.write(before)
                exchanged = other.choice(files)
                with open(path, "rb") as a, open(exchanged, "rb") as b:
                    mine, its = a.read(), b.read()
                for content_of_path, content_of_other in ((its, mine), (mine, its)):
                    with open(path, "wb") as a, open(exchanged, "wb") as b:
                        if path == exchanged:
                            content_of_path = content_of_other = mine
                        a.write(content_of_path)
                        a.flush()
                        b.write(content_of_other)
                    self.assertEqual(self.ask_both(image), content_of_path == mine, f"{path} and {exchanged}")
            self.assertTrue(self.ask_both(image))

    def test_additional_files_and_folders(self):
        for image, _ in self.copies():
            os.mkdir(os.path.join(image, "cpu", "folder"))
            self.assertFalse(self.ask_both(image))
            os.rmdir(os.path.join(image, "cpu", "folder"))
            stranger = os.path.join(image, "cpu", "stranger")
            open(stranger, "w").close()
            self.assertFalse(self.ask_both(image))
            os.unlink(stranger)
            self.assertTrue(self.ask_both(image))

    def test_manifests_that_break_a_rule_for_pages(self):
        for image, _ in self.copies():
            manifest = os.path.join(image, "manifest.pb")
            with open(manifest, "rb") as file:
                good = file.read()
            if not read_image.read_manifest(image).get(15):  # no page files
                continue
            for what, change in PAGES_WRONG.items():
                message = Message(good[32:-16 - 48])  # without the origin MAC
                change(message)
                body = message.bytes()
                data = good[:16] + struct.pack("<QQ", len(body), read_image.FEATURE_AGENT) + body
                with open(manifest, "wb") as file:
                    file.write(data + read_image.xxh3_128(data))
                self.assertEqual(self.ask_both(image), what == "nothing", what)
                if what != "nothing":  # before any pack is read
                    with self.assertRaises(read_image.BadImage, msg=what):
                        read_image.read_manifest(image)
            with open(manifest, "wb") as file:
                file.write(good)


class Message:
    """A protobuf message to be modified: numbers and bytes by field."""

    def __init__(self, data=b""):
        self.fields = {number: [] for number in range(1, 32)} | read_image.fields(data)

    @staticmethod
    def varint(value):
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    def bytes(self):
        out = []
        for number, values in self.fields.items():
            for value in values:
                is_number = isinstance(value, int)
                out.append(self.varint(number << 3 | (0 if is_number else 2)))
                out.append(self.varint(value) if is_number else self.varint(len(value)) + value)
        return b"".join(out)

    def change(self, number, **values):
        """Returns the first message in that field, with the fields `fN` set to a list."""
        inner = Message(self.fields[number][0])
        for name, value in values.items():
            inner.fields[int(name[1:])] = value
        self.fields[number][0] = inner.bytes()
        return self

    def with_id(self, name):
        self.fields[1] = [name]
        return self

    def page_file(self, path, size, packs, firsts, pages):
        runs, inner = Message(), Message()
        for number, value in enumerate((packs, firsts, pages), 1):
            runs.fields[number] = value
        for number, value in enumerate(([path], [size], [runs.bytes()]), 1):
            inner.fields[number] = value
        self.fields[15].append(inner.bytes())

    def pack_of(self, unit_bytes):
        """Returns 1 + the index of the pack with units of this size."""
        return next(i for i, raw in enumerate(self.fields[13], 1) if Message(raw).fields[4] == [unit_bytes])

    def pack_of_pages(self):
        return self.pack_of(4096)


def of_zeros(message, name=b"cpu/pages-9.img", size=4096, runs=1, each=1):
    message.page_file(name, size, [0] * runs, [0] * runs, [each] * runs)


MANY = 1 << 31  # number of pages
PAGES_WRONG = {
    "nothing": lambda m: of_zeros(m),
    "no naming": lambda m: m.fields.update({12: []}),
    "a name with a control character": lambda m: of_zeros(m, b"cpu/pages\x01.img"),
    "a name of 256 bytes": lambda m: of_zeros(m, b"cpu/" + b"x" * 256),
    "a name with a slash": lambda m: of_zeros(m, b"cpu/a/b"),
    "another folder": lambda m: of_zeros(m, b"log/pages-9.img"),
    "the name of a file": lambda m: of_zeros(m, Message(m.fields[11][0]).fields[1][0]),
    "a name twice": lambda m: of_zeros(m, Message(m.fields[15][0]).fields[1][0]),
    "no size": lambda m: of_zeros(m, size=0, runs=0),
    "a size that is not its pages": lambda m: of_zeros(m, size=8192),
    "more than 2^50 bytes": lambda m: of_zeros(m, size=129 * MANY * 4096, runs=129, each=MANY),
    "a run of no pages": lambda m: m.page_file(b"cpu/pages-9.img", 4096, [0, 0], [0, 0], [1, 0]),
    "zeros from a place": lambda m: m.page_file(b"cpu/pages-9.img", 4096, [0], [1], [1]),
    "lists of different lengths": lambda m: m.page_file(b"cpu/pages-9.img", 4096, [0], [0, 0], [1]),
    "a pack that is none": lambda m: m.page_file(b"cpu/pages-9.img", 4096, [99], [0], [1]),
    "a page that no pack can have":
        lambda m: m.page_file(b"cpu/pages-9.img", 8192, [m.pack_of_pages()], [(1 << 24) - 1], [2]),
    "more pages than an image can have":
        lambda m: m.page_file(b"cpu/pages-9.img", 3 * 4096 << 24, [m.pack_of_pages()] * 3, [0] * 3, [1 << 24] * 3),
    "a pack that uses more than it has": lambda m: m.change(13, f7=[1 << 49]),
    "a pack of another unit size": lambda m: m.change(13, f4=[8192]),
    "pages in a pack of blocks": lambda m: m.page_file(b"cpu/pages-9.img", 4096, [m.pack_of(2 << 20)], [0], [1]),
    "a pack with too many units": lambda m: m.change(13, f6=[(1 << 24) + 1]),
    "a pack of more than 2^50 bytes": lambda m: m.change(13, f2=[(1 << 50) + 1]),
    "a pack that nothing needs": lambda m: m.fields[13].append(
        Message(m.fields[13][m.pack_of_pages() - 1]).with_id(b"x" * 16).bytes()),
    "too many files of pages": lambda m: [of_zeros(m, b"cpu/%d" % i) for i in range(65537)],
}

if __name__ == "__main__":
    EVERY = "--all" in sys.argv
    if EVERY:
        sys.argv.remove("--all")
    STASIS = os.path.abspath(sys.argv.pop(1))
    unittest.main()
