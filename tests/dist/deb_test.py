"""deb_test.py CHECK ROOT FOLDER VERSION [ARCHITECTURE]: checks the Debian packages of this version in FOLDER, for this
machine or another ARCHITECTURE. CHECK is `lintian`, `control`, or `install`, on a minimal Debian; ROOT is a tarball of
its files (tools/debian_root.sh)."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import bare_root
import elf
import round_trip

SKIPPED = 77

TREE = pathlib.Path("/usr/lib/stasis")
CONFIG = pathlib.Path("/etc/stasis/config.toml")
STATE = pathlib.Path("/var/lib/stasis")
UNIT = pathlib.Path("/usr/lib/systemd/system/stasisd.service")
ENABLED = pathlib.Path("/etc/systemd/system/multi-user.target.wants/stasisd.service")

# Paths that apt, dpkg and man-db write for any package, and file systems that are not part of the root.
OTHERS = {"/proc", "/dev", "/sys", "/run", "/tmp", "/var/cache/apt", "/var/cache/debconf", "/var/cache/man", "/var/lib/apt",
          "/var/lib/dpkg", "/var/log"}

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
               "DEBIAN_FRONTEND": "noninteractive", "MANWIDTH": "120"}


def fail(message: str) -> None:
    print(f"FAILED: {message}")
    sys.exit(1)


def demand(true: object, message: str) -> None:
    if not true:
        fail(message)


def run(*words: object) -> str:
    """Runs a command and returns its output, stderr included."""
    print("$", *words, flush=True)
    done = subprocess.run([str(word) for word in words], env=ENVIRONMENT, stdin=subprocess.DEVNULL, timeout=200,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    demand(done.returncode == 0, f"exit code {done.returncode}: {done.stdout}")
    return done.stdout


def files() -> dict[str, tuple]:
    """Returns all files of the root with type, mode, and size or link target."""
    found = {}
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in OTHERS]
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            link = os.path.islink(path)
            size = status.st_size if not os.path.isdir(path) else 0
            found[path] = (oct(status.st_mode), os.readlink(path) if link else size)
    return found


def apt(*words: object) -> str:
    return run("apt-get", "-q", "-y", "-o", "APT::Sandbox::User=root", *words)


def check_documentation() -> None:
    for page, text in (("stasis", "EXIT STATUS"), ("stasis-suspend", "--keep-context"), ("softgpu", "--devices"),
                       ("stasisd", "SOCKETS")):
        demand(text in run("man", "-P", "cat", page), f"the man page {page} lacks {text}")
    demand("limits.arena" in run("man", "-P", "cat", "5", "stasis-config"), "stasis-config(5) lacks limits.arena")
    run("bash", "-c", "source /usr/share/bash-completion/completions/stasis && complete -p stasis")
    for file in ("zsh/vendor-completions/_stasis", "fish/vendor_completions.d/stasis.fish", "doc/stasis/copyright",
                 "doc/stasis/changelog.Debian.gz", "doc/stasis/docs/daemon.md", "doc/stasis-softgpu/copyright"):
        demand((pathlib.Path("/usr/share") / file).stat().st_size > 0, f"/usr/share/{file} is empty")


def check_daemon() -> None:
    """The daemon's unit is installed but not enabled, which is left to the administrator."""
    programs = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    demand(programs == ["/usr/sbin/stasisd"], f"the unit starts {programs}")
    run("/usr/sbin/stasisd", "--version")
    demand(not ENABLED.is_symlink(), "the daemon is enabled")
    # Does the same as `systemctl enable`; a purge must remove the link.
    ENABLED.symlink_to(UNIT)


def check_drop_in() -> None:
    demand(shutil.which("cuda-checkpoint", path=ENVIRONMENT["PATH"]) is None, "cuda-checkpoint is on PATH")
    link = pathlib.Path("/usr/local/bin/cuda-checkpoint")
    link.symlink_to(TREE / "libexec/compat/cuda-checkpoint")
    demand("--get-state" in run("cuda-checkpoint", "--help"), "the link to the drop-in does not work")
    link.unlink()


def check_round_trip() -> None:
    check = subprocess.run([TREE / "libexec/criu", "check"], capture_output=True, text=True)
    if check.returncode == 0:
        round_trip.steps(TREE, pathlib.Path("/usr/bin/stasis"))
    else:
        print(f"no dump and restore: CRIU cannot work on this machine: {check.stderr.strip()}")


def install_and_remove(packages: list[str]) -> None:
    ENABLED.parent.mkdir(parents=True, exist_ok=True)
    before = files()
    apt("install", "--no-install-recommends", *packages)
    installed = files()
    demand(run("stasis", "--version").startswith("stasis "), "stasis --version prints no version")
    check_documentation()
    check_daemon()
    check_drop_in()
    check_round_trip()
    # All package scripts can run again.
    apt("install", "--reinstall", "--no-install-recommends", *packages)

    image = STATE / "data/images/saved"
    image.mkdir(parents=True)
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text("[helper]\nidle_s = 0\n")
    apt("remove", "stasis", "stasis-softgpu")
    demand(CONFIG.exists() and image.exists(), "remove deletes the configuration or images")
    demand(not TREE.exists(), f"remove leaves {TREE}")
    said = apt("purge", "stasis", "stasis-softgpu")
    demand(not CONFIG.exists(), "purge leaves the configuration")
    demand(image.exists() and "/var/lib/stasis is kept" in said, f"purge deletes images, or does not say so: {said}")

    demand(not ENABLED.is_symlink(), "purge leaves the daemon enabled")

    shutil.rmtree(STATE)
    # A purge may remove this folder, too, since it is empty.
    ENABLED.parent.mkdir(exist_ok=True)
    after = files()
    new = sorted(path for path in installed if path not in before)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    demand(any(path.startswith("/usr/lib/stasis/") for path in new), "nothing was installed")
    demand(not changed, f"not as before: {[(path, before.get(path), after.get(path)) for path in changed]}")
    wrong = [path for path in new if not path.startswith(("/usr/", "/var/lib/systemd/deb-systemd-helper"))]
    demand(not wrong, f"installed outside of /usr: {wrong}")


def install(root: pathlib.Path, packages: list[str]) -> None:
    if os.geteuid() != 0 or not root.exists():
        print(f"skipped: it needs root's rights and {root}, which tools/debian_root.sh makes")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="stasis-debian-", ignore_cleanup_errors=True) as folder:
        pathlib.Path(folder).chmod(0o755)
        subprocess.run(["tar", "-C", folder, "--numeric-owner", "-xpf", root], check=True)
        names = [shutil.copy(package, f"{folder}/tmp/").removeprefix(folder) for package in packages]
        sys.exit(bare_root.run_in(pathlib.Path(folder), lambda: install_and_remove(names)))


def lintian(packages: list[str]) -> None:
    if shutil.which("lintian") is None:
        print("skipped: lintian is not installed")
        sys.exit(SKIPPED)
    run("lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", *packages)


def control(packages: list[str], version: str, architecture: str) -> None:
    """The packages are for this architecture, as are all programs in them, and need the right packages."""
    wanted = {"stasis": ["libc6 (>= 2.36)"], "stasis-softgpu": [f"stasis (= {version}-1)", "libc6 (>= "]}
    for package in packages:
        fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package, "Package", "Version", "Architecture",
                                                          "Depends").splitlines())
        print(fields)
        demand(fields["Version"] == f"{version}-1", f"{package} has the version {fields['Version']}")
        demand(fields["Architecture"] == architecture, f"{package} is for {fields['Architecture']}")
        for needed in wanted.pop(fields["Package"]):
            demand(needed in fields["Depends"], f"{package} does not depend on {needed}, but on {fields['Depends']}")
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-x", package, folder)
            machines = {elf.machine(path) for path in pathlib.Path(folder).rglob("*") if elf.is_elf(path)}
        demand(machines == {{"amd64": "x86-64", "arm64": "AArch64"}[architecture]}, f"{package} has programs for {machines}")
    demand(not wanted, f"there is no package {list(wanted)}")


def main() -> None:
    check, root, folder, version = sys.argv[1:5]
    architecture = sys.argv[5] if len(sys.argv) > 5 else run("dpkg", "--print-architecture").strip()
    packages = sorted(map(str, pathlib.Path(folder).glob(f"stasis*_{version}-1_{architecture}.deb")))
    demand(len(packages) == 2, f"the packages of version {version} in {folder} are {packages}; ./run dist makes two")
    if check == "control":
        control(packages, version, architecture)
    elif check == "install":
        install(pathlib.Path(root), packages)
    else:
        lintian(packages)


if __name__ == "__main__":
    main()
