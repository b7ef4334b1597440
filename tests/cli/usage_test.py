#!/usr/bin/env python3
"""Common behaviour of all commands: version and help, misspelt words, and results that cannot be
written."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

GOLDEN = HERE.parent / "image" / "golden" / "v1"


def version_and_help(world):
    version = world.stasis("version").out
    for words in (("--version",), ("-V",)):
        demand(world.stasis(*words).out == version, f"{world.last}")
    demand(world.stasis("--version", "--json").json() == world.stasis("version", "--json").json(), f"{world.last}")
    for path in ((), ("dump",), ("image", "ls")):
        text = world.stasis("help", *path).out
        wanted = world.stasis(*path, "--help").out
        demand(text.splitlines()[2:] == wanted.splitlines()[2:] and text.startswith(wanted.splitlines()[0]),
               f"help {path}:\n{text}\nand not\n{wanted}")
    demand("Did you mean `dump`?" in world.stasis("help", "dmup", expect=2).err, f"{world.last}")


# A command line, and a word of the expected hint.
MISSPELT = [
    ("supsend x", "Did you mean `suspend`?"),
    ("restor x", "Did you mean `restore`?"),
    ("--jsn ps", "Did you mean `--json`?"),
    ("image lss", "Did you mean `ls`?"),
    ("dump --leave-runing x", "Did you mean `--leave-running`?"),
    ("dump x --tpc=close", "Did you mean `--tcp`?"),
    ("run --jb x -- true", "Did you mean `--job`?"),
    ("run --jb x true", "Did you mean `--job`?"),
    ("run true -- x", "Put the program and all its arguments after `--`."),
    ("run -- ", "stasis run [OPTIONS] [--] CMD ARG..."),
    ("no-such-verb", "`stasis --help` lists the commands."),
    ("image ls --no-such-flag", "`stasis image ls --help` explains this command."),
]


def misspelt(world):
    for line, hint in MISSPELT:
        refused = world.stasis(*line.split(), expect=2)
        demand(refused.err.rstrip().endswith(hint), f"no hint {hint!r}: {refused}")


def run_without_separator(world):
    """The program starts at the first word that is not an option."""
    done = world.stasis("run", "-q", "--no-agent", "--attach", "--job", "plain", "sh", "-c", "echo \"$@\"", "sh", "--json",
                        "-x", "[a,b]", "")
    demand(done.out == "--json -x [a,b] \n", f"{done}")
    world.stasis("delete", "plain")
    done = world.stasis("exec", "--no-agent", "--json", "--job", "plain", "true")
    demand(done.json()["id"] == "plain", f"{done}")
    world.stasis("wait", "plain")
    world.stasis("delete", "plain")


def verbs(world, path=()):
    text = world.stasis(*path, "--help").out
    if "Subcommands:" not in text:
        return {" ".join(path)}
    inner = re.findall(r"^  ([a-z-]+)[, ]", text.split("Subcommands:")[1], re.M)
    return set().union(*(verbs(world, (*path, verb)) for verb in inner))


# Not tested below, because these run long or show a program's output.
ELSEWHERE = {"bench", "attach", "arena ready", "daemon start", "migrate", "receive"}


def full_disk(world):
    """Every command that prints exits with code 1 and a message if its output cannot be written."""
    program = Program(world, "job", "vector", ["--memory", "8M", "--interval", "10"])
    program.run()
    world.stasis("run", "--no-agent", "--job", "ended", "--", "true")
    world.stasis("wait", "ended")
    shutil.copytree(GOLDEN, world.images / "old")
    child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    world.own(child.pid)
    world.stasis("daemon", "start")
    world.stasis("run", "--share", "--job", "shares", "--", "sleep", "1000")
    pid = str(program.pid)
    seen = set()
    env = {**world.env, "SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()), "SPANK_STASIS_STATE_DIR": str(world.state)}

    def into_nothing(words, json=True):
        with open("/dev/full", "w") as full:
            done = subprocess.run([world.bin / "stasis", *(["--json"] if json else []), *words], env=env,
                                  cwd=world.folder, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=90, check=False)
        demand("standard output: No space left on device" in done.stderr and done.returncode in (1, 5),
               f"{words}: {done.returncode}\n{done.stderr}")
        demand(done.returncode == 1 or words[0] in ("check", "container", "slurm"), f"{words}: {done.returncode}")
        seen.add(" ".join(words[:2]))
        seen.add(words[0])

    for words in (["--help"], ["--version"], ["dump", "--help"], ["logs", "job"], ["ps"], ["image", "ls"], ["check"]):
        into_nothing(words, json=False)
    remote, plugins = world.folder / "remote", world.folder / "plugins"
    remote.mkdir()
    plugins.mkdir()
    (plugins / "stasis_plugin.so").touch()
    # The set-up ends with 5 where no runtime is installed.
    paths = f"--criu-config {world.folder}/criu.conf --cdi-dir {world.folder}/cdi --plugin-dir {plugins}"
    for line in (f"container setup {paths}", f"container check {paths}", f"container remove {paths}",
                 f"cdi install --dir {world.folder}/cdi", f"manage {child.pid} --job found", "version", "help", "help dump", "ps", "inspect job", "checkpoints job",
                 "logs job", "wait ended", "image ls", "image inspect old", "image verify old", "key create",
                 "key show", "key join", f"repo add fleet {remote}", "repo ls", "repo check fleet",
                 "image push old -R fleet", "image pull old -R fleet --name copy", "repo remove fleet", "arena reserve 4MiB",
                 "arena ls", "gpu ls", f"gpu state {pid}", f"gpu restore-tid {pid}", f"gpu lock {pid}",
                 f"gpu checkpoint {pid}", f"gpu restore {pid}", f"gpu unlock {pid}", f"gpu toggle {pid}",
                 f"gpu toggle {pid}", "check", "check job", "slurm check",
                 "slurm config", "slurm epilog", "recover",
                 "share", "share pin shares", "share unpin shares", "kill shares -s KILL", "config show", "completion bash", "daemon status",
                 "suspend job", "resume job", "dump job --name new", "restore job", "kill found -s KILL", "delete ended",
                 "image delete old", "image gc", "arena free", "run --job short --no-agent -- true", "daemon drain"):
        into_nothing(line.split())
    child.wait()
    world.disown(child.pid)
    missing = verbs(world) - seen - ELSEWHERE
    demand(not missing, f"not tried: {missing}")
    world.stasis("kill", "job", "-s", "KILL")
    world.stasis("wait", "job", expect=None)


def run(world):
    version_and_help(world)
    misspelt(world)
    run_without_separator(world)
    full_disk(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
