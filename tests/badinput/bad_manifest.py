"""Every byte of the manifest changed, one after the other: the image is refused."""

import sys

from bench import Bench, main
from damage import Subject

MANIFEST = "manifest.pb"


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
    for offset in range(size):
        # `inspect` reads the manifest exactly as `restore` does, and is the quicker of them.
        verbs = ["restore", "inspect", "verify"] if offset % 8 == 0 or offset < 64 else ["inspect"]
        bench.case(f"byte {offset} of {size}", changed, subject, offset, verbs)
    subject.close()


if __name__ == "__main__":
    sys.exit(main(run))
