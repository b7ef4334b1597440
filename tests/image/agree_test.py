#!/usr/bin/env python3
"""`stasis image verify` and the independent reader say the same of good and of changed images.

The golden images of every format, and the same with one bit of a file flipped, with files cut, made
longer, exchanged and taken away: both find an image whole, or neither does.
"""

import glob
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import read_image  # noqa: E402

FLIPS = 120  # of each image


class BothReaders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def copies(self):
        goldens = sorted(glob.glob(os.path.join(HERE, "golden", "*")))
        self.assertGreater(len(goldens), 2)
        for golden in goldens:
            image = os.path.join(self.folder.name, os.path.basename(golden))
            shutil.copytree(golden, image)
            yield image, sorted(os.path.join(folder, name) for folder, _, names in os.walk(image) for name in names)

    def ask_both(self, image):
        """Whether they find it whole."""
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
        for image, files in self.copies():
            with self.subTest(image):
                self.assertTrue(self.ask_both(image))
                sizes = [os.path.getsize(f) for f in files]
                found = 0
                for path in random.choices(files, weights=[s ** 0.5 for s in sizes], k=FLIPS):
                    at = random.randrange(os.path.getsize(path))
                    with open(path, "r+b", buffering=0) as file:
                        byte = os.pread(file.fileno(), 1, at)
                        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << random.randrange(8)]), at)
                        found += not self.ask_both(image)
                        os.pwrite(file.fileno(), byte, at)
                # The rest lies in blocks of shared packs that this image does not refer to.
                self.assertGreater(found, FLIPS * 0.8)
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

    def test_what_is_in_an_image_beside_its_files(self):
        for image, _ in self.copies():
            os.mkdir(os.path.join(image, "cpu", "folder"))
            self.assertFalse(self.ask_both(image))
            os.rmdir(os.path.join(image, "cpu", "folder"))
            stranger = os.path.join(image, "cpu", "stranger")
            open(stranger, "w").close()
            self.assertFalse(self.ask_both(image))
            os.unlink(stranger)
            self.assertTrue(self.ask_both(image))


if __name__ == "__main__":
    STASIS = os.path.abspath(sys.argv.pop(1))
    unittest.main()
