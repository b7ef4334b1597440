"""unit_file_test.py SOURCE BUILD: the systemd unit has the settings that jobs need, and systemd
accepts it."""

import configparser
import pathlib
import shutil
import subprocess
import sys
import tempfile

UNIT = "packaging/systemd/stasisd.service"
PREFIX = "/opt/stasis/"

# Required lines, and the reason for each.
NEEDED = {
    "Type": ("notify", "services that start after it would find no socket"),
    "KillMode": ("process", "a restart would end restored programs and operations"),
    "Restart": ("on-failure", "a killed daemon would not be restarted"),
    "Delegate": ("yes", "systemd would change a program's own cgroups"),
    "OOMPolicy": ("continue", "a program that runs out of memory would stop the daemon"),
    "RuntimeDirectory": ("stasisd", "there would be no folder for the socket"),
    "RuntimeDirectoryPreserve": ("yes", "the next daemon would not know the programs that share GPUs"),
}
# Settings that break CRIU or affect the user's programs.
HARMFUL = ["Private", "Protect", "Restrict", "NoNewPrivileges", "SystemCall", "CapabilityBoundingSet", "ReadOnly",
           "Inaccessible", "RootDirectory", "User", "Group", "DynamicUser", "MemoryDeny", "LockPersonality", "OOMScore",
           "ExecStop", "WatchdogSec", "UMask", "MemoryMax"]


def problems(source, build):
    unit = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string((source / UNIT).read_text())
    service = dict(unit["Service"])
    for key, (value, why) in NEEDED.items():
        if service.get(key) != value:
            yield f"{key} is {service.get(key)}, not {value}: {why}"
    yield from (f"{key} is set" for key in service if key.startswith(tuple(HARMFUL)))
    program = service["ExecStart"]
    if not program.startswith(PREFIX) or " " in program:
        yield f"ExecStart {program} is not a program below {PREFIX}"
    elif not (build / program.removeprefix(PREFIX)).is_file():
        yield f"there is no {program.removeprefix(PREFIX)} in the tree that is built"
    if unit["Install"].get("WantedBy") != "multi-user.target":
        yield "it is not started with the machine"


def verified(source, build):
    """Runs systemd-analyze, if it is installed, with the installed program."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("systemd-analyze is not here: the file was only read by this test")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "stasisd.service"
        text = (source / UNIT).read_text()
        copy.write_text(text.replace(PREFIX, f"{build}/"))
        done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if "stasisd.service" in line]
        if done.returncode != 0 and not said:
            print(f"systemd-analyze does not work here: {done.stderr.strip()}")
        yield from said


def main():
    source, build = (pathlib.Path(word) for word in sys.argv[1:3])
    found = [*problems(source, build), *verified(source, build)]
    print("\n".join(found) or "as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
