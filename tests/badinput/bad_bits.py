"""One bit of an image flipped, at a thousand places of its packs and other files: a restore finds it before
the program runs, and names the file. (`bad_manifest.py` flips one of every byte of the manifest.)"""

import random
import sys

from bench import Bench, main
from damage import Subject

PLACES = 1000
IN_PACKS = 300  # of them
MANIFEST = "manifest.pb"


def changed(subject, name, offset, bit):
    undo = subject.flip(name, offset, bit)
    try:
        subject.refused(["restore"], 1, name)
    finally:
        undo()


def run(bench: Bench):
    subject = Subject(bench)
    random.seed(2)
    data = [(name, (subject.bad / name).stat().st_size) for name in subject.files if str(name) != MANIFEST]
    # The ends of every file, and places in proportion to the sizes.
    places = [(name, at) for name, size in data if size for at in {0, size - 1}]
    packs = [(name, size) for name, size in data if name.parts[0] == "gpu"]
    others = [(name, size) for name, size in data if name.parts[0] != "gpu"]
    for files, count in ((packs, IN_PACKS), (others, PLACES - IN_PACKS - len(places))):
        for name, size in random.choices(files, weights=[size for _, size in files], k=count):
            places.append((name, random.randrange(size)))
    mine = places[bench.part[0]::bench.part[1]]
    print(f"{len(data)} files, {sum(size for _, size in data)} bytes, {len(mine)} of {len(places)} places")
    for name, offset in mine:
        bench.case(f"{name} byte {offset}", changed, subject, name, offset, random.randrange(8))
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
