#!/usr/bin/env python3
"""other_debian.py ROOT TARBALL NAME [OPTION...]: runs NAME_test.py in another Debian, with its release of Slurm and the
programs of the tarball. ROOT is a tarball of the Debian's files (tools/debian_root.sh)."""

import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "dist"))
import bare_root  # noqa: E402

SKIPPED = 77
INSIDE = "/opt/source"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def test(name, options):
    """In the other root: runs the test and exits with its code."""
    tree, = pathlib.Path("/opt").glob("stasis-*")
    words = ["python3", "-B", f"{INSIDE}/tests/slurm/{name}_test.py", "--build", str(tree), *options]
    sys.exit(subprocess.run(words, env=ENVIRONMENT, cwd="/", check=False).returncode)


def main():
    root, tarball, name, *options = sys.argv[1:]
    for file, maker in ((root, "tools/debian_root.sh trixie slurm"), (tarball, "./run dist")):
        if os.geteuid() != 0 or not os.path.exists(file):
            print(f"SKIPPED: it needs root's rights and {file}, which `{maker}` makes")
            return SKIPPED
    more = {f"{INSIDE}/{part}": str(SOURCE / part) for part in ("tests", "integrations")}
    with tempfile.TemporaryDirectory(prefix="stasis-debian-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        # The devices in it are those of this machine, and cannot be made everywhere.
        subprocess.run(["tar", "-C", folder, "--numeric-owner", "--exclude=./dev/*", "-xpf", root], check=True)
        subprocess.run(["tar", "-C", f"{folder}/opt", "--no-same-owner", "-xf", tarball], check=True)
        return bare_root.run_in(pathlib.Path(folder), lambda: test(name, options), more)


if __name__ == "__main__":
    sys.exit(main())
