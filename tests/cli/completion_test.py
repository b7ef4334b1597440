#!/usr/bin/env python3
"""stasis completion: bash, zsh and fish complete options, commands and names, and never execute a
name."""
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from world import demand  # noqa: E402

GOLDEN = HERE.parent / "image" / "golden" / "v1"


def complete(world, line):
    """Returns bash's candidates at the end of `line`; a word followed by a blank is complete."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    # Split like readline does.
    words = [part for word in words for part in (re.split("(=)", word) if word.startswith("-") else [word])]
    quoted = " ".join(shlex.quote(word) for word in words)
    script = (f"source <(stasis completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
              '_stasis; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "--norc", "-c", script], env=world.env, cwd=world.folder, text=True,
                          capture_output=True, timeout=60, check=False)
    demand(done.returncode == 0 and not done.stderr, lambda: f"{line}: {done.stderr}")
    return sorted(filter(None, done.stdout.split("\n")))


# Replacements of zsh's functions for words, files and programs.
ZSH = """compdef() {}
compadd() { shift; print -rl -- "$@" }
_files() { print -rl -- ${PREFIX}*(N) }
_command_names() { print -rl -- ${(k)commands[(I)$PREFIX*]} }
source script.zsh
"""


def complete_zsh(world, line):
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    quoted = " ".join(shlex.quote(word) for word in words)
    script = f"{ZSH} words=({quoted}); CURRENT={len(words)}; PREFIX={shlex.quote(words[-1])}; _stasis"
    done = subprocess.run(["zsh", "-f", "-c", script], env=world.env, cwd=world.folder, text=True, capture_output=True,
                          timeout=60, check=False)
    demand(done.returncode == 0 and not done.stderr, lambda: f"{line}: {done.stderr}")
    return sorted(filter(None, done.stdout.split("\n")))


def complete_fish(world, line):
    script = f"source script.fish; complete -C {shlex.quote(line)}"
    done = subprocess.run(["fish", "--no-config", "-c", script], env=world.env, cwd=world.folder, text=True,
                          capture_output=True, timeout=60, check=False)
    demand(done.returncode == 0 and not done.stderr, lambda: f"{line}: {done.stderr}")
    return sorted(filter(None, (row.split("\t")[0] for row in done.stdout.split("\n"))))


SHELLS = {"bash": complete, "zsh": complete_zsh, "fish": complete_fish}


def prepare(world):
    for job in ("alpha", "beta"):
        world.stasis("run", "--no-agent", "--job", job, "--", "true")
        world.stasis("wait", job)
    shutil.copytree(GOLDEN, world.images / "saved")
    (world.folder / "note.txt").touch()
    for shell in SHELLS:
        (world.folder / f"script.{shell}").write_text(world.stasis("completion", shell).out)


def names_are_not_run(world):
    """Any user who can write to a directory of images can create arbitrary names."""
    bait = world.images / "$(touch owned)"
    shutil.copytree(GOLDEN, bait)
    shutil.copytree(GOLDEN, world.images / "`touch owned`")
    for shell, ask in SHELLS.items():
        for line in ("stasis image inspect ", "stasis restore s", "stasis restore ", "stasis image verify \\$"):
            found = ask(world, line)
            demand(not (world.folder / "owned").exists(), f"{shell} ran a name at `{line}`")
            demand(not any("touch" in word for word in found), f"{shell} offers {found} at `{line}`")
            demand("$" in line or "saved" in found, f"{shell} offers {found} at `{line}`")
    listed = world.stasis("image", "ls")
    rows = [row for row in listed.out.splitlines() if "touch" in row]
    demand(len(rows) == 2 and all("is not a valid name of an image" in row for row in rows), f"{listed}")
    listed = world.stasis("image", "ls", "--json").json()["images"]
    demand([image["ok"] for image in sorted(listed, key=lambda image: image["name"] == "saved")] == [False, False, True],
           f"{listed}")
    world.stasis("image", "gc")
    for folder in (bait, world.images / "`touch owned`"):
        demand((folder / "manifest.pb").exists(), "gc removed it")
        shutil.rmtree(folder)


def other_shells(world):
    for shell in ("zsh", "fish"):
        def expect(line, *offered):
            found = [word.rstrip() for word in SHELLS[shell](world, line)]
            demand(found == sorted(offered), f"{shell}: `{line}` gives {found}, not {sorted(offered)}")

        expect("stasis su", "suspend")
        expect("stasis --json re", "receive", "recover", "repo", "restore", "resume")
        expect("stasis image ", "delete", "gc", "inspect", "ls", "pull", "push", "verify")
        expect("stasis dump ", "alpha", "beta")
        expect("stasis logs -f al", "alpha")
        expect("stasis dump al --t", "--tcp", "--timeout", "--to")
        expect("stasis dump --tcp ", "close", "keep", "refuse")
        expect("stasis dump --tcp=k", "--tcp=keep")
        expect("stasis dump -d no", "note.txt")
        expect("stasis image inspect sa", "saved")
        expect("stasis image verify not", "note.txt")
        expect("stasis run -- cat no", "note.txt")
        demand("bash" in SHELLS[shell](world, "stasis run -- bas"), f"{shell} completes no program")


def bash(world):
    def expect(line, *offered):
        found = complete(world, line)
        demand(found == sorted(offered), f"`{line}` gives {found}, not {sorted(offered)}")

    expect("stasis su", "suspend")
    expect("stasis --json su", "suspend")
    expect("stasis re", "receive", "recover", "repo", "restore", "resume")
    expect("stasis image ", "delete", "gc", "inspect", "ls", "pull", "push", "verify")
    expect("stasis image -d note.txt l", "ls")
    expect("stasis dump ", "alpha", "beta")
    expect("stasis logs -f al", "alpha")
    expect("stasis dump al --t", "--tcp", "--timeout", "--to")
    expect("stasis dump --tcp ", "close", "keep", "refuse")
    expect("stasis dump --tcp=k", "keep")
    expect("stasis dump --tcp=keep be", "beta")
    expect("stasis dump --leave-running be", "beta")
    expect("stasis dump --timeout ")
    expect("stasis dump -d no", "note.txt")
    expect("stasis image inspect sa", "saved")
    expect("stasis image verify not", "note.txt")
    expect("stasis restore sa", "saved")
    expect("stasis restore be", "beta")
    expect("stasis exec --no-a", "--no-agent")
    demand("bash" in complete(world, "stasis run -- bas"), "a program is not completed")
    expect("stasis run -- cat no", "note.txt")
    expect("stasis completion ", "bash", "fish", "zsh")
    expect("stasis ps ")


def verbs_of(world, path=()):
    """Returns every path of subcommands with the options of its help text."""
    text = world.stasis(*path, "--help").out
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?=[ ,\n])", text.split("Options:")[1].split("Subcommands:")[0]))
    found = {path: {option for option in options if re.search(rf"^  .*{option}[ ,\n]", text, re.M)}}
    if "Subcommands:" in text:
        for verb in re.findall(r"^  ([a-z-]+)[, ]", text.split("Subcommands:")[1], re.M):
            found.update(verbs_of(world, (*path, verb)))
    return found


def all_is_offered(world):
    """Checks that bash completes every subcommand and option of the help texts."""
    known = verbs_of(world)
    demand(len(known) > 30 and "--tcp" in known[("dump",)], f"the help texts were not understood: {known}")
    for path, options in known.items():
        if path:
            found = complete(world, " ".join(["stasis", *path]))
            demand(path[-1] in found, f"`{' '.join(path)}` is not offered: {found}")
        found = complete(world, " ".join(["stasis", *path, "-"]))
        demand(options <= set(found), f"not offered at `{' '.join(path)}`: {options - set(found)}")


def run(world):
    prepare(world)
    bash(world)
    names_are_not_run(world)
    other_shells(world)
    all_is_offered(world)
    # With an invalid configuration everything except names is still completed.
    (world.folder / "bad.toml").write_text("x = 1")
    world.stasis("completion", "bash", env={"STASIS_CONFIG": "bad.toml"})
    world.stasis("completion", "tcsh", expect=2)
    world.stasis("completion", expect=2)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
