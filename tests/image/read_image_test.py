#!/usr/bin/env python3
"""The independent reader on the golden image: accepts it intact and detects changes."""

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
SECRET = bytes(range(32))


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

    def test_it_is_intact(self):
        self.assertEqual(read_image.verify(GOLDEN), [])

    def packs(self, image):
        manifest = read_image.read_manifest(image)
        return [read_image.open_pack(image, message) for message in read_image.packs_of(manifest)]

    def test_units_have_the_names_that_their_key_gives(self):
        key = read_image.UnitKey(SECRET)
        naming = read_image.fields(read_image.read_manifest(GOLDEN)[12][0])
        self.assertEqual(naming[1][0], b"poly127-4k-aes256")
        self.assertEqual(naming[2][0], key.id)
        codecs, sizes, compared, holes = set(), set(), 0, 0
        for pack in self.packs(GOLDEN):
            sizes.add(pack.unit_bytes)
            for number, (name, _) in enumerate(pack.units):
                codecs.add(pack.extents[number][0][4])
                try:
                    unit = pack.unit(number)
                except read_image.BadImage:
                    holes += 1
                    continue
                if unit is not None:
                    self.assertEqual(key.name(unit), name)
                    compared += 1
        # The holes are a block and a page of earlier images that the image does not need.
        self.assertEqual((codecs, sizes, holes), ({0, 1, 2}, {4096, 2 << 20}, 2))
        self.assertGreaterEqual(compared, 9)

    def test_aes_is_that_of_the_standard(self):
        block = bytes.fromhex("00112233445566778899aabbccddeeff")
        self.assertEqual(read_image.aes256(SECRET, block).hex(), "8ea2b7ca516745bfeafc49904b496089")

    def test_a_changed_file_is_named(self):
        for name in ("cpu/length-1.img", "cpu/length-5000.img", "log/criu-dump.log"):
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

    def test_its_features_are_those_that_it_uses(self):
        self.assertIn("agent/", " ".join(path for path, _, _ in read_image.files_of(read_image.read_manifest(GOLDEN))))
        with open(os.path.join(GOLDEN, "manifest.pb"), "rb") as file:
            good = file.read()[:-16]
        for bits in (0, 2, 7):
            data = good[:24] + bits.to_bytes(8, "little") + good[32:]
            with open(self.path("manifest.pb"), "wb") as file:
                file.write(data + read_image.xxh3_128(data))
            with self.assertRaisesRegex(read_image.BadImage, "features|lengths"):
                read_image.read_manifest(self.image)

    def test_its_origin_mac_is_valid_as_long_as_nothing_is_changed(self):
        self.assertTrue(read_image.is_by(self.image, SECRET))
        self.assertFalse(read_image.is_by(self.image, bytes(32)))
        with open(self.path("manifest.pb"), "rb") as file:
            data = file.read()[:-16]
        for at in (32, len(data) // 2, len(data) - 49, len(data) - 1):
            changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
            with open(self.path("manifest.pb"), "wb") as file:
                file.write(changed + read_image.xxh3_128(changed))
            self.assertFalse(read_image.is_by(self.image, SECRET))

    def test_it_gives_the_files_that_criu_wrote(self):
        folder = os.path.join(self.folder.name, "made")
        os.mkdir(folder)
        try:
            read_image.make_cpu_files(GOLDEN, folder)
        except read_image.BadImage as error:
            self.assertIn("there is no zstd here", str(error))
            return
        with open(os.path.join(folder, "pages-1.img"), "rb") as file:
            pages = file.read()
        self.assertEqual(len(pages), 9 * 4096)
        self.assertEqual(pages[2 * 4096:4 * 4096], bytes(8192))
        self.assertEqual(pages[4096:8192], (b"a line of L; " * 400)[:4096])
        self.assertEqual(pages[4096:8192], pages[7 * 4096:8 * 4096])

    def test_each_change_in_a_unit_is_found_unless_no_image_needs_it(self):
        found = unseen = 0
        for pack in self.packs(GOLDEN):
            for extent, which in pack.extents:
                if extent[4] != 0 and which > 0:
                    continue
                at = extent[0] + (which * pack.unit_bytes + 77 if extent[4] == 0 else 20)
                self.change(pack.where, at)
                findings = read_image.verify(self.image)
                found += bool(findings)
                unseen += not findings
                self.change(pack.where, at)
            for before_end in (1, 20, 60, 90, 127, 130, 150):
                at = os.path.getsize(self.path(pack.where)) - before_end
                self.change(pack.where, at)
                self.assertIn(pack.where, read_image.verify(self.image)[0])
                self.change(pack.where, at)
        self.assertEqual((found, unseen), (10, 2))
        self.assertEqual(read_image.verify(self.image), [])

    def test_a_broken_lz4_block_is_found(self):
        good = bytes([0x14]) + b"a" + bytes([1, 0]) + bytes([0x50]) + b"tail!"
        self.assertEqual(read_image.lz4_block(good, 14, "x"), b"a" * 9 + b"tail!")
        for at in range(len(good)):
            for value in (0, 0xff):
                bad = good[:at] + bytes([value]) + good[at + 1:]
                try:
                    self.assertEqual(len(read_image.lz4_block(bad, 14, "x")), 14)
                except read_image.BadImage:
                    pass
        for size in (0, 13, 15):
            with self.assertRaises(read_image.BadImage):
                read_image.lz4_block(good, size, "x")

    def test_it_is_described(self):
        out = io.StringIO()
        with redirect_stdout(out):
            read_image.describe(GOLDEN)
        self.assertIn("llama: ./counter --port", out.getvalue())


if __name__ == "__main__":
    unittest.main()
