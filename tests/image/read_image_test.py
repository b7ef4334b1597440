#!/usr/bin/env python3
"""The independent reader on the golden images: it finds them whole, and finds what is changed."""

import io
import os
import shutil
import sys
import tempfile
import unittest
from contextlib import redirect_stdout

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import read_image  # noqa: E402

GOLDEN = os.path.join(HERE, "golden", "v1")


class GoldenImage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.image = os.path.join(self.folder.name, "v1")
        shutil.copytree(GOLDEN, self.image)

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.image, name)

    def change(self, name, at):
        with open(self.path(name), "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))

    def test_it_is_whole(self):
        self.assertEqual(read_image.verify(GOLDEN), [])

    def test_blocks_have_the_names_that_their_key_gives(self):
        key = read_image.BlockKey(bytes(range(32)))
        manifest = read_image.read_manifest(GOLDEN)
        naming = read_image.fields(manifest[12][0])
        self.assertEqual(naming[1][0], b"poly127-4k")
        self.assertEqual(naming[2][0], key.id)
        with open(os.path.join(GOLDEN, "gpu/0.pack"), "rb") as file:
            blocks = list(read_image.read_pack(file.read(), "gpu/0.pack"))
        self.assertEqual(len(blocks), 2)
        for name, block in blocks:
            self.assertEqual(key.name(block), name)

    def test_a_changed_file_is_named(self):
        for name in ("cpu/length-1.img", "cpu/length-5000.img", "gpu/0.pack", "log/criu-dump.log"):
            self.change(name, 0)
            self.assertEqual(read_image.verify(self.image)[0], f"{name} is damaged")
            self.change(name, 0)

    def test_any_changed_byte_of_the_manifest_is_found(self):
        for at in range(os.path.getsize(self.path("manifest.pb"))):
            self.change("manifest.pb", at)
            with self.assertRaises(read_image.BadImage):
                read_image.verify(self.image)
            self.change("manifest.pb", at)

    def test_missing_longer_and_additional_files_are_found(self):
        os.unlink(self.path("cpu/length-2.img"))
        with open(self.path("cpu/length-0.img"), "ab") as file:
            file.write(b"x")
        with open(self.path("cpu/more.img"), "wb"):
            pass
        findings = " ".join(read_image.verify(self.image))
        for name in ("length-2.img", "length-0.img", "more.img"):
            self.assertIn(name, findings)

    def test_one_with_an_agent_is_whole_and_has_its_feature(self):
        golden = os.path.join(HERE, "golden", "v1-agent")
        self.assertEqual(read_image.verify(golden), [])
        self.assertIn("agent/", " ".join(path for path, _, _ in read_image.files_of(read_image.read_manifest(golden))))
        for image, bits in ((golden, 0), (GOLDEN, 1), (GOLDEN, 2)):
            with open(os.path.join(image, "manifest.pb"), "rb") as file:
                data = file.read()[:-16]
            data = data[:24] + bits.to_bytes(8, "little") + data[32:]
            with open(self.path("manifest.pb"), "wb") as file:
                file.write(data + read_image.xxh3_128(data))
            with self.assertRaisesRegex(read_image.BadImage, "features"):
                read_image.read_manifest(self.image)

    def test_it_is_described(self):
        out = io.StringIO()
        with redirect_stdout(out):
            read_image.describe(GOLDEN)
        self.assertIn("llama: ./counter --port", out.getvalue())


if __name__ == "__main__":
    unittest.main()
