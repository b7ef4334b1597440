#!/usr/bin/env python3
"""stasis completion: bash completes what the parser takes and what there is; the other shells' scripts
know every verb and option of the help texts."""
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
    """What bash offers at the end of `line`; a word that ends in a blank is whole."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    # As readline breaks them.
    words = [part for word in words for part in (re.split("(=)", word) if word.startswith("-") else [word])]
    quoted = " ".join(shlex.quote(word) for word in words)
    script = (f"source <(stasis completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
              '_stasis; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "--norc", "-c", script], env=world.env, cwd=world.folder, text=True,
                          capture_output=True, timeout=60, check=False)
    demand(done.returncode == 0 and not done.stderr, lambda: f"{line}: {done.stderr}")
    return sorted(filter(None, done.stdout.split("\n")))


def bash(world):
    for job in ("alpha", "beta"):
        world.stasis("run", "--no-agent", "--job", job, "--", "true")
        world.stasis("wait", job)
    shutil.copytree(GOLDEN, world.images / "saved")
    (world.folder / "note.txt").touch()

    def expect(line, *offered):
        found = complete(world, line)
        demand(found == sorted(offered), f"`{line}` gives {found}, not {sorted(offered)}")

    expect("stasis su", "suspend")
    expect("stasis --json su", "suspend")
    expect("stasis re", "recover", "restore", "resume")
    expect("stasis image ", "delete", "gc", "inspect", "ls", "verify")
    expect("stasis image -d note.txt l", "ls")
    expect("stasis dump ", "alpha", "beta")
    expect("stasis logs -f al", "alpha")
    expect("stasis dump al --t", "--tcp", "--timeout")
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
    """Every path of verbs with the options of its help text."""
    text = world.stasis(*path, "--help").out
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?=[ ,\n])", text.split("Options:")[1].split("Subcommands:")[0]))
    found = {path: {option for option in options if re.search(rf"^  .*{option}[ ,\n]", text, re.M)}}
    if "Subcommands:" in text:
        for verb in re.findall(r"^  ([a-z-]+)[, ]", text.split("Subcommands:")[1], re.M):
            found.update(verbs_of(world, (*path, verb)))
    return found


def every_shell_knows_all(world):
    known = verbs_of(world)
    demand(len(known) > 30 and "--tcp" in known[("dump",)], f"the help texts were not understood: {known}")
    scripts = {shell: world.stasis("completion", shell).out for shell in ("bash", "zsh", "fish")}
    for path, options in known.items():
        at = " ".join(path)
        for shell in ("bash", "zsh"):
            listed = re.search(rf'_stasis_options\(\).*?^    [^\n]*"{at}"[^\n]*\) echo "([^"]*)"', scripts[shell], re.M | re.S)
            demand(listed, f"{shell} does not know `{at}`")
            missing = options - set(listed[1].split())
            demand(not missing, f"{shell} does not know {missing} of `{at}`")
        condition = f"'__stasis_at {at}'" if path else "'__stasis_just_at'"
        lines = [l for l in scripts["fish"].splitlines() if f"-n {condition}" in l]
        for option in options:
            flag = f" -l {option[2:]} " if option.startswith("--") else f" -s {option[1:]} "
            demand(any(flag in line for line in lines), f"fish does not know {option} of `{at}`")
        if path:
            above = f"'__stasis_just_at{''.join(' ' + v for v in path[:-1])}' -a '{path[-1]}'"
            demand(above in scripts["fish"], f"fish does not know `{at}`")
            verbs = re.search(rf'_stasis_verbs\(\).*?^    [^\n]*"{" ".join(path[:-1])}"[^\n]*\) echo "([^"]*)"',
                              scripts["zsh"], re.M | re.S)
            demand(verbs and path[-1] in verbs[1].split(), f"zsh does not know `{at}`")


def syntax(world):
    """Of the shells that are here."""
    for shell in ("zsh", "fish"):
        if shutil.which(shell):
            world.shell(f"stasis completion {shell} > script && {shell} -n script")


def run(world):
    bash(world)
    every_shell_knows_all(world)
    syntax(world)
    # A configuration with a mistake is no reason to complete nothing but names.
    (world.folder / "bad.toml").write_text("x = 1")
    world.stasis("completion", "bash", env={"STASIS_CONFIG": "bad.toml"})
    world.stasis("completion", "tcsh", expect=2)
    world.stasis("completion", expect=2)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
