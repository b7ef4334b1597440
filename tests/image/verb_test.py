#!/usr/bin/env python3
"""stasis image ls, inspect, verify and delete through the real command line, on the golden image."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "golden", "v1")
PARTIAL = ".b.partial-0123456789abcdef"


class ImageVerbs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.store = os.path.join(self.folder.name, "data", "images")
        shutil.copytree(GOLDEN, os.path.join(self.store, "a"))

    def tearDown(self):
        self.folder.cleanup()

    def stasis(self, *arguments, expect=0):
        env = {"PATH": os.environ["PATH"], "STASIS_STATE_DIR": self.folder.name}
        done = subprocess.run([STASIS, "image", *arguments], env=env, cwd=self.folder.name, timeout=60,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def names(self):
        return sorted(os.listdir(self.store))

    def test_ls(self):
        self.assertIn("./counter --port", self.stasis("ls").stdout)
        images = json.loads(self.stasis("ls", "--json").stdout)["images"]
        self.assertEqual([(i["name"], i["ok"], i["job"]) for i in images], [("a", True, "llama")])
        os.truncate(os.path.join(self.store, "a", "manifest.pb"), 40)
        images = json.loads(self.stasis("ls", "--json").stdout)["images"]
        self.assertFalse(images[0]["ok"])
        self.assertIn("no images", self.stasis("ls", "-d", "nowhere").stdout)
        self.assertEqual(json.loads(self.stasis("ls", "-d", "nowhere", "--json").stdout), {"images": []})

    def test_inspect(self):
        self.assertIn("softgpu 580.159.04", self.stasis("inspect", "a").stdout)
        by_name = json.loads(self.stasis("inspect", "a", "--json").stdout)
        by_path = json.loads(self.stasis("inspect", os.path.join(self.store, "a"), "--json").stdout)
        self.assertEqual(by_name, by_path)
        self.assertEqual(by_name["gpus"][0]["used_bytes"], 1 << 30)
        self.assertEqual(by_name["format"], 1)

    def test_verify(self):
        self.assertIn(": whole, 36 files", self.stasis("verify", "a").stdout)
        with open(os.path.join(self.store, "a", "cpu", "length-5.img"), "r+b") as file:
            file.write(b"\0\1\2\3\4")
        bad = self.stasis("verify", "a", expect=1)
        self.assertIn("cpu/length-5.img is damaged between byte 0 and 5", bad.stdout)
        self.assertIn("cpu/length-5.img", bad.stderr)
        self.assertIn("Use another copy of the image", bad.stderr)
        findings = json.loads(self.stasis("verify", "a", "--json", expect=1).stdout)["findings"]
        self.assertEqual([f["path"] for f in findings], ["cpu/length-5.img"])

    def test_missing_and_invalid_images(self):
        for verb in ("inspect", "verify", "delete"):
            self.assertIn("there is no image b", self.stasis(verb, "b", expect=3).stderr)
            self.stasis(verb, "./b", expect=3)
            self.stasis(verb, expect=2)
            self.stasis(verb, "bad name", expect=2)
        os.mkdir(os.path.join(self.store, "c"))
        for verb in ("inspect", "verify", "delete"):
            self.stasis(verb, "c", expect=1)
        self.assertEqual(self.names(), ["a", "c"])
        self.stasis(expect=2)

    def test_image_in_the_working_directory(self):
        # A folder that is no image does not hide the image of that name.
        os.mkdir(os.path.join(self.folder.name, "a"))
        found = json.loads(self.stasis("inspect", "a", "--json").stdout)
        self.assertEqual(found["path"], os.path.join(self.store, "a"))
        here = os.path.join(self.folder.name, "here")
        shutil.copytree(GOLDEN, here)
        for name in ("here", "./here"):
            self.assertEqual(json.loads(self.stasis("inspect", name, "--json").stdout)["path"], here)

    def test_delete(self):
        shutil.copytree(GOLDEN, os.path.join(self.store, "b"))
        # All names are looked up before the first image is deleted.
        self.stasis("delete", "a", "nothing", expect=3)
        self.assertEqual(self.names(), ["a", "b"])
        os.mkdir(os.path.join(self.store, PARTIAL))
        self.assertIn("deleted", self.stasis("delete", "a").stdout)
        self.assertEqual(self.names(), ["b"], "what a killed dump left goes too")

    def test_images_in_use_are_not_deleted(self):
        fd = os.open(os.path.join(self.store, "a"), os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            self.assertIn("is in use", self.stasis("delete", "a", expect=7).stderr)
        finally:
            os.close(fd)
        self.assertEqual(self.names(), ["a"])
        self.stasis("delete", "a")
        self.assertEqual(self.names(), [])

    def test_foreign_entries_are_kept(self):
        thesis = os.path.join(self.store, "a", "thesis.tex")
        open(thesis, "w").close()
        self.assertIn("thesis.tex", self.stasis("delete", "a", expect=1).stderr)
        self.assertTrue(os.path.exists(thesis))
        os.unlink(thesis)
        os.symlink(os.path.join(self.store, "a"), os.path.join(self.store, "link"))
        self.stasis("delete", "link", expect=1)
        self.assertEqual(self.names(), ["a", "link"])


if __name__ == "__main__":
    STASIS = os.path.abspath(sys.argv.pop(1))
    unittest.main()
