"""An image that is truncated, too long, incomplete, with additional files, or of a future version.

With --all every file is altered in every way; otherwise one file of each directory is, and each of
the others in one way. (`reader_test.cc` makes the same alterations within one process.)
"""

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


def ways(subject, every):
    """Returns each file with the alterations to try."""
    folders = set()
    for number, name in enumerate(subject.files):
        is_first = name.parent not in folders
        folders.add(name.parent)
        yield name, ALTERATIONS if every or is_first else [ALTERATIONS[number % len(ALTERATIONS)]]


def changed_manifest(subject):
    """All checksums are correct. A restore is rejected unless the user trusts the image."""
    forge = subject.world.build / "tests" / "security_forge"
    subprocess.run([forge, subject.bad, "--keep-mac", str(os.getuid() + 1)], check=True)
    try:
        subject.refused(["restore"], 4, "was changed after it was written here", "--trust-image")
        subject.world.stasis("image", "verify", subject.bad, expect=1)
    finally:
        subject.put_right(MANIFEST)


def run(bench: Bench):
    subject = Subject(bench)
    for name, alterations in ways(subject, bench.all):
        for alter in alterations:
            if alter in (half, empty, shorter) and (subject.bad / name).stat().st_size == 0:
                continue
            bench.case(f"{name} {alter.__name__}", altered, subject, name, alter)
            for stray in subject.bad.rglob("*.elsewhere"):
                stray.unlink()
    bench.case("a file that is not in the manifest", added, subject)
    # In the envelope, the format version is at byte 8, features at 24.
    bench.case("of a future version", other_version, subject, 8, 2, "format 2")
    bench.case("of a far future version", other_version, subject, 8, 4000000000, "4000000000")
    bench.case("of version 0", other_version, subject, 8, 0, "format 0")
    bench.case("with an unknown feature", other_version, subject, 24, 8, "features")
    # The image has the agent's library (feature 1) and an origin MAC (feature 2).
    bench.case("without the feature that it uses", other_version, subject, 24, 2, "features", 1)
    bench.case("with a MAC that is not announced", other_version, subject, 24, 1, "is damaged", 1)
    bench.case("whose manifest was changed", changed_manifest, subject)
    demand(subject.world.stasis("ps", "-a", "--json").json()["jobs"][0]["state"] == "dumped",
           "the job is not as it was")
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
