"""An image cut off, too long, with files missing or added, of a future version."""

import os
import subprocess
import sys

from bench import Bench, demand, main
from damage import Subject

MANIFEST = "manifest.pb"
BOTH = ["restore", "verify"]


def altered(subject, name, alter):
    path = subject.bad / name
    try:
        alter(path)
        subject.refused(BOTH, (1, 3), name)
    finally:
        subject.put_right(name)


def shorter(path):
    os.truncate(path, path.stat().st_size - 1)


def longer(path):
    with open(path, "ab") as file:
        file.write(b"\0")


def half(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def linked(path):
    target = path.with_suffix(".elsewhere")
    path.rename(target)
    path.symlink_to(target)


def folder(path):
    path.unlink()
    path.mkdir()


ALTERATIONS = [shorter, longer, half, empty, os.unlink, linked, folder]


def added(subject):
    extra = subject.bad / "cpu" / "core-99999.img"
    extra.write_bytes(b"from somewhere else")
    try:
        subject.refused(BOTH, 1, "core-99999.img")
    finally:
        extra.unlink()


def other_version(subject, offset, number, text, code=5):
    reseal = subject.world.build / "tests" / "badinput_reseal"
    subprocess.run([reseal, subject.bad / MANIFEST, str(offset), str(number)], check=True)
    try:
        subject.refused(["restore", "verify", "inspect"], code, text)
    finally:
        subject.put_right(MANIFEST)


def run(bench: Bench):
    subject = Subject(bench)
    for name in subject.files:
        for alter in ALTERATIONS:
            if alter in (half, empty, shorter) and (subject.bad / name).stat().st_size == 0:
                continue
            bench.case(f"{name} {alter.__name__}", altered, subject, name, alter)
            for stray in subject.bad.rglob("*.elsewhere"):
                stray.unlink()
    bench.case("a file that is not in the manifest", added, subject)
    # The envelope: format version at byte 8, features at 24.
    bench.case("of a future version", other_version, subject, 8, 4, "format 4")
    bench.case("of a far future version", other_version, subject, 8, 4000000000, "4000000000")
    bench.case("of version 0", other_version, subject, 8, 0, "format 0")
    bench.case("with an unknown feature", other_version, subject, 24, 2, "features")
    # It has the agent's library, and so feature 1.
    bench.case("without the feature that it uses", other_version, subject, 24, 0, "features", 1)
    demand(subject.world.stasis("ps", "-a", "--json").json()["jobs"][0]["state"] == "dumped",
           "the job is not as it was")
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
