#!/usr/bin/env python3
"""The independent reader on the golden images: accepts intact ones and detects changes."""

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
GOLDEN_3 = os.path.join(HERE, "golden", "v3")
GOLDEN_ORIGIN = os.path.join(HERE, "golden", "v3-origin")
GOLDEN_2 = os.path.join(HERE, "golden", "v2")


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
            pack = read_image.Pack(file.read(), "gpu/0.pack")
        self.assertEqual(len(pack.entries), 2)
        for name in pack.entries:
            self.assertEqual(key.name(pack.block(name)), name)

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
        for image, bits in ((golden, 0), (GOLDEN, 1), (GOLDEN, 4)):
            with open(os.path.join(image, "manifest.pb"), "rb") as file:
                data = file.read()[:-16]
            data = data[:24] + bits.to_bytes(8, "little") + data[32:]
            with open(self.path("manifest.pb"), "wb") as file:
                file.write(data + read_image.xxh3_128(data))
            with self.assertRaisesRegex(read_image.BadImage, "features"):
                read_image.read_manifest(self.image)

    def test_one_with_an_origin_mac_is_its_writers_as_long_as_nothing_is_changed(self):
        shutil.rmtree(self.image)
        shutil.copytree(GOLDEN_ORIGIN, self.image)
        self.assertEqual(read_image.verify(self.image), [])
        secret = bytes(range(32))
        self.assertTrue(read_image.is_by(self.image, secret))
        self.assertFalse(read_image.is_by(self.image, bytes(32)))
        self.assertFalse(read_image.is_by(GOLDEN_3, secret))
        with open(self.path("manifest.pb"), "rb") as file:
            data = file.read()[:-16]
        for at in (32, len(data) // 2, len(data) - 49, len(data) - 1):
            changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
            with open(self.path("manifest.pb"), "wb") as file:
                file.write(changed + read_image.xxh3_128(changed))
            self.assertFalse(read_image.is_by(self.image, secret))

    def test_format_2_is_whole_and_its_blocks_have_their_names(self):
        self.assertEqual(read_image.verify(GOLDEN_2), [])
        key = read_image.BlockKey(bytes(range(32)))
        manifest = read_image.read_manifest(GOLDEN_2)
        codecs, holes, blocks = set(), 0, {}
        for message in read_image.packs_of(manifest):
            with open(os.path.join(GOLDEN_2, message["path"]), "rb") as file:
                pack = read_image.Pack(file.read(), message["path"])
            for name in pack.entries:
                codecs.add(pack.entries[name][3])
                try:
                    blocks[name] = pack.block(name)
                except read_image.BadImage:
                    holes += 1
        self.assertEqual((codecs, holes), ({0, 1, 2}, 1))
        compared = [name for name, block in blocks.items() if block is not None]
        self.assertGreaterEqual(len(compared), 4)
        for name in compared:
            self.assertEqual(key.name(blocks[name]), name)

    def test_each_change_in_a_block_of_format_2_is_found_but_where_no_image_looks(self):
        shutil.rmtree(self.image)
        shutil.copytree(GOLDEN_2, self.image)
        found = unseen = 0
        for message in read_image.packs_of(read_image.read_manifest(self.image)):
            with open(self.path(message["path"]), "rb") as file:
                pack = read_image.Pack(file.read(), message["path"])
            for name, (offset, stored, _, codec, _) in pack.entries.items():
                self.change(message["path"], offset + stored // 2)
                findings = read_image.verify(self.image)
                if findings:
                    self.assertEqual(findings, [f"{message['path']}: block {name.hex()} is damaged"])
                    found += 1
                else:
                    unseen += 1
                self.change(message["path"], offset + stored // 2)
            for at in (0, 30, 100, os.path.getsize(self.path(message["path"])) - 1):
                self.change(message["path"], at)
                self.assertIn(message["path"], read_image.verify(self.image)[0])
                self.change(message["path"], at)
            os.truncate(self.path(message["path"]), 5000)
            self.assertIn(message["path"], read_image.verify(self.image)[0])
            shutil.copy(os.path.join(GOLDEN_2, message["path"]), self.path(message["path"]))
        self.assertEqual((found, unseen), (5, 1))

    def test_format_3_is_whole_and_its_pages_have_their_names(self):
        self.assertEqual(read_image.verify(GOLDEN_3), [])
        key = read_image.BlockKey(bytes(range(32)))
        manifest = read_image.read_manifest(GOLDEN_3)
        packs = [read_image.open_pack(GOLDEN_3, message) for message in read_image.packs_of(manifest)]
        codecs, compared, holes = set(), 0, 0
        for pack in packs:
            for number, (name, _) in enumerate(pack.pages):
                codecs.add(pack.extents[number][0][3])
                try:
                    page = pack.page(number)
                except read_image.BadImage:
                    holes += 1
                    continue
                if page is not None:
                    self.assertEqual(key.name(page), name)
                    compared += 1
        self.assertEqual((codecs, holes), ({0, 1, 2}, 1))
        self.assertGreaterEqual(compared, 5)

    def test_format_3_gives_the_files_that_criu_wrote(self):
        folder = os.path.join(self.folder.name, "made")
        os.mkdir(folder)
        try:
            read_image.make_cpu_files(GOLDEN_3, folder)
        except read_image.BadImage as error:
            self.assertIn("there is no zstd here", str(error))
            return
        with open(os.path.join(folder, "pages-1.img"), "rb") as file:
            pages = file.read()
        self.assertEqual(len(pages), 9 * 4096)
        self.assertEqual(pages[2 * 4096:4 * 4096], bytes(8192))
        self.assertEqual(pages[4096:8192], (b"a page of L; " * 400)[:4096])
        self.assertEqual(pages[4096:8192], pages[7 * 4096:8 * 4096])

    def test_each_change_in_a_page_is_found_but_where_no_image_looks(self):
        shutil.rmtree(self.image)
        shutil.copytree(GOLDEN_3, self.image)
        found = unseen = 0
        for message in read_image.packs_of(read_image.read_manifest(self.image)):
            path = message["path"]
            pack = read_image.open_pack(self.image, message)
            for extent, which in pack.extents:
                if extent[3] != 0 and which > 0:
                    continue
                self.change(path, extent[0] + (which * 4096 + 77 if extent[3] == 0 else 20))
                findings = read_image.verify(self.image)
                found += bool(findings)
                unseen += not findings
                self.change(path, extent[0] + (which * 4096 + 77 if extent[3] == 0 else 20))
            for before_end in (1, 20, 60, 90, 97, 120, 140):
                self.change(path, os.path.getsize(self.path(path)) - before_end)
                self.assertIn(path, read_image.verify(self.image)[0])
                self.change(path, os.path.getsize(self.path(path)) - before_end)
        self.assertEqual((found, unseen), (5, 1))
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
