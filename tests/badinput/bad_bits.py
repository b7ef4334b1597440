"""Flips one bit of an image, at a thousand positions in its packs and other files: the damage must be found, and the
file named. (`bad_manifest.py` flips bits of the manifest.)

One process verifies all flips (verify_flips.cc). Some of them, all with --all, are also given to
`stasis restore`, which must reject the image before the program runs and change no file.
"""

import random
import subprocess
import sys

from bench import Bench, demand, main
from damage import Subject

PLACES = 1000
IN_PACKS = 300  # number of flips in packs
RESTORED = 50   # number of flips that are also restored
MANIFEST = "manifest.pb"


def changed(subject, name, offset, bit):
    undo = subject.flip(name, offset, bit)
    try:
        subject.refused(["restore"], 1, name)
    finally:
        undo()


def found_by_verify(subject, flips):
    program = subject.world.build / "tests" / "badinput_verify_flips"
    lines = "".join(f"{offset} {bit} {name}\n" for name, offset, bit in flips)
    done = subprocess.run([program, subject.bad], input=lines, capture_output=True, text=True, timeout=300, check=False)
    demand(done.returncode == 0 and f"{len(flips)} flips, 0 missed" in done.stdout,
           f"verify_flips ends with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}")
    print(done.stdout, end="")


def run(bench: Bench):
    subject = Subject(bench)
    pick = random.Random(2)
    data = [(name, (subject.bad / name).stat().st_size) for name in subject.files if str(name) != MANIFEST]
    # The first and last byte of every file, and other positions in proportion to the sizes.
    ends = [(name, at) for name, size in data if size for at in sorted({0, size - 1})]
    packs = [(name, size) for name, size in data if name.parts[0] == "packs"]
    others = [(name, size) for name, size in data if name.parts[0] != "packs"]
    inner = []
    for files, count in ((packs, IN_PACKS), (others, PLACES - IN_PACKS - len(ends))):
        for name, size in pick.choices(files, weights=[size for _, size in files], k=count):
            inner.append((name, pick.randrange(size)))
    flips = [(name, at, pick.randrange(8)) for name, at in ends + inner]
    print(f"{len(data)} files, {sum(size for _, size in data)} bytes, {len(flips)} places")
    bench.case("all places, by verify", found_by_verify, subject, flips)
    # The first byte of every file, and others in proportion to the sizes.
    first = [flip for flip in flips[:len(ends)] if flip[1] == 0]
    restored = first + pick.sample(flips[len(ends):], max(0, RESTORED - len(first)))
    for name, offset, bit in flips if bench.all else restored:
        bench.case(f"{name} byte {offset} bit {bit}", changed, subject, name, offset, bit)
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
