"""Changes bytes of the manifest, one at a time: the image must be rejected. With --all every byte
is changed, otherwise those of the envelope, the last ones, and some in between. (`reader_test.cc`
changes every byte within one process.)"""

import sys

from bench import Bench, main
from damage import Subject

MANIFEST = "manifest.pb"
ENDS = 64   # number of bytes at each end that are always changed
STEP = 61   # distance of changed bytes in between, without --all


def changed(subject, offset, verbs):
    undo = subject.flip(MANIFEST, offset, offset % 8)
    try:
        subject.refused(verbs, 1, "manifest.pb")
    finally:
        undo()


def run(bench: Bench):
    subject = Subject(bench)
    size = (subject.bad / MANIFEST).stat().st_size
    print(f"the manifest has {size} bytes")
    offsets = range(size) if bench.all else [*range(ENDS), *range(ENDS, size - ENDS, STEP), *range(size - ENDS, size)]
    for offset in offsets:
        # `inspect` reads the manifest exactly like `restore`, and is faster.
        verbs = ["restore", "inspect", "verify"] if offset % 8 == 0 else ["inspect"]
        bench.case(f"byte {offset} of {size}", changed, subject, offset, verbs)
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
