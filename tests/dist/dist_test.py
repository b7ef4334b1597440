"""Checks of the tarball: dist_test.py CHECK FOLDER. The check `unpack` runs first and unpacks it
there. STASIS_EMULATOR is the beginning of a command line that runs its programs; by default this machine runs them."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import bare_root
import elf
import round_trip

# The newest glibc that may be required: by our programs, and by CRIU and its libraries, which are built with Debian's
# headers.
OURS, THEIRS = (2, 34), (2, 36)

SKIPPED = 77

# Commands that need nothing else, as paths below the tree.
PROGRAMS = [["bin/stasis", "version"], ["libexec/compat/cuda-checkpoint", "--help"], ["libexec/criu", "--version"]]

EMULATOR = os.environ.get("STASIS_EMULATOR", "").split()

# Libraries that are not shipped with the programs: the driver, softgpu's or a real one.
THE_DRIVER = {"libcuda.so.1"}


def fail(message: str) -> None:
    print(f"FAILED: {message}")
    sys.exit(1)


def tree_in(folder: pathlib.Path) -> pathlib.Path:
    trees = list(folder.iterdir())
    if len(trees) != 1:
        fail(f"the tarball should hold one folder, and holds {trees}")
    return trees[0]


def elves(tree: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in tree.rglob("*") if elf.is_elf(path))


def is_ours(tree: pathlib.Path, path: pathlib.Path) -> bool:
    if path.parent == tree / "lib":
        return path.name.startswith("libstasis-")
    return path not in (tree / "libexec/criu", tree / "lib/stasis/criu-amdgpu/amdgpu_plugin.so")


def unpack(folder: pathlib.Path) -> None:
    tarball = os.environ.get("STASIS_TARBALL") or fail("STASIS_TARBALL is not set; ./run dist sets it")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-C", folder, "-xzf", tarball], check=True)


def remove(folder: pathlib.Path) -> None:
    shutil.rmtree(folder)


def layout(folder: pathlib.Path) -> None:
    tree = tree_in(folder)
    for name in ("bin/stasis", "libexec/criu", "libexec/stasis-shim", "libexec/stasis-criu-inside", "libexec/stasis-pidns-init", "libexec/compat/cuda-checkpoint", "libexec/stasis-mover", "lib/libstasis-agent.so",
                 "lib/softgpu/libcuda.so.1", "lib/softgpu/criu/softgpu_hip_plugin.so", "workloads/hip_probe", "bin/stasisd", "libexec/stasis-worker", "libexec/stasis-container-output", "lib/stasis/criu/stasis_plugin.so", "lib/stasis/criu/stasis-criu-hook",
                 "lib/stasis/criu-restore/stasis_restore.so",
                 "share/licenses/packages", "share/licenses/criu/COPYING", "share/licenses/curl/COPYING",
                 "share/systemd/stasisd.service",
                 "share/kubernetes/stasis.yaml",
                 "share/docs/security.md", "share/man/man1/stasis.1", "share/man/man5/stasis-config.5",
                 "share/man/man8/stasisd.8"):
        if not (tree / name).exists():
            fail(f"{name} is missing")
    # Like every plugin of Slurm, it is compiled natively.
    if not EMULATOR:
        for name in ("libexec/stasis-step", "lib/stasis/slurm/stasis.so", "lib/stasis/slurm-24.11/stasis.so"):
            if not (tree / name).exists():
                fail(f"{name} is missing")
    for part in ("criu", "curl"):
        if not list(tree.glob(f"share/licenses/{part}/{part}_*.orig.tar.*")):
            fail(f"the source of {part} is missing")
    for link in tree.rglob("*"):
        if link.is_symlink() and tree.resolve() not in link.resolve().parents:
            fail(f"{link} leads out of the tarball")


def manual(folder: pathlib.Path) -> None:
    """Each command has a man page, which has all options of its help text."""
    tree = tree_in(folder)

    def help_of(*words: str) -> str:
        return subprocess.run([*EMULATOR, tree / "bin/stasis", *words, "--help"], check=True, capture_output=True, text=True).stdout

    def compare(page: str, *words: str) -> None:
        text = help_of(*words)
        shown = page.replace("\\-", "-")
        missing = [name for name in re.findall(r"^  (-\S+|[A-Z]\S+)", text, re.M)
                   if not all(f"\\fB{part.partition('{')[0]}\\fR" in shown for part in name.split(","))]
        if missing or len(text.splitlines()) < 4:
            fail(f"the man page of stasis {' '.join(words)} lacks {missing} of the help text:\n{text}")

    def verbs_of(*words: str) -> list[str]:
        listed = help_of(*words).partition("\nSubcommands:\n")[2]
        return re.findall(r"^  ([a-z]\S*?),? ", listed, re.M)

    compare((tree / "share/man/man1/stasis.1").read_text())
    for verb in verbs_of():
        page = (tree / f"share/man/man1/stasis-{verb}.1").read_text()
        compare(page, verb)
        for inner in verbs_of(verb):
            compare(page.partition(f".SH {inner.upper()}\n")[2].partition(".SH ")[0], verb, inner)


def floor(folder: pathlib.Path) -> None:
    tree = tree_in(folder)
    too_young = []
    for path in elves(tree):
        version = elf.glibc_floor(path)
        print(f"GLIBC_{'.'.join(map(str, version)):6} {path.relative_to(tree)}")
        if version > (OURS if is_ours(tree, path) else THEIRS):
            too_young.append(str(path.relative_to(tree)))
    if too_young:
        fail(f"need a younger glibc than {OURS} (ours) or {THEIRS} (CRIU): {', '.join(too_young)}")


# These make no calls that FORTIFY checks, so nothing shows that it was enabled.
WITHOUT_FORTIFIED_CALLS = {"libsoftgpu_cudart.so", "stasis-container-output"}


def hardening(folder: pathlib.Path) -> None:
    tree = tree_in(folder)
    ours = [path for path in elves(tree) if is_ours(tree, path)]
    missing = {path: elf.hardening_missing(path) for path in ours}
    for path, what in missing.items():
        if path.name in WITHOUT_FORTIFIED_CALLS and "FORTIFY" in what:
            what.remove("FORTIFY")
    for path, what in missing.items():
        if what:
            print(f"{path.relative_to(tree)} lacks {', '.join(what)}")
    if not ours or any(missing.values()):
        fail(f"of {len(ours)} programs and libraries, {sum(map(bool, missing.values()))} are not hardened")


def libraries(folder: pathlib.Path) -> None:
    tree = tree_in(folder)
    for path in elves(tree):
        if not all(entry.startswith("$ORIGIN") for entry in elf.search_path(path)):
            fail(f"{path} looks for libraries in {elf.search_path(path)}")
        folders = [entry.replace("$ORIGIN", str(path.parent)) for entry in elf.search_path(path)]
        for name in elf.needed(path):
            inside = any((pathlib.Path(entry) / name).exists() for entry in folders)
            if not (inside or elf.GLIBC.match(name) or name in THE_DRIVER):
                fail(f"{path.relative_to(tree)} takes {name} from the system")


def call_programs(tree: pathlib.Path) -> None:
    for program, *arguments in PROGRAMS:
        print(f"$ {program} {' '.join(arguments)}", flush=True)
        subprocess.run([*EMULATOR, tree / program, *arguments], check=True, env={}, cwd="/")


def empty_environment(folder: pathlib.Path) -> None:
    call_programs(tree_in(folder))


def in_bare_root(folder: pathlib.Path, steps: Callable[[pathlib.Path], None]) -> None:
    if os.geteuid() != 0:
        print("skipped: only root may make a root of its own")
        sys.exit(SKIPPED)
    sys.exit(bare_root.run(tree_in(folder), steps))


def bare(folder: pathlib.Path) -> None:
    in_bare_root(folder, call_programs)


def round_trip_in_bare_root(folder: pathlib.Path) -> None:
    check = subprocess.run([tree_in(folder) / "libexec/criu", "check"], capture_output=True, text=True)
    if check.returncode != 0:
        print(f"skipped: CRIU cannot work on this machine: {check.stderr.strip()}")
        sys.exit(SKIPPED)
    in_bare_root(folder, round_trip.steps)


CHECKS = {
    "unpack": unpack,
    "remove": remove,
    "layout": layout,
    "manual": manual,
    "floor": floor,
    "hardening": hardening,
    "libraries": libraries,
    "empty_environment": empty_environment,
    "bare_root": bare,
    "round_trip": round_trip_in_bare_root,
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]))
