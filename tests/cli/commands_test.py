#!/usr/bin/env python3
"""docs/commands.md lists exactly the commands of `stasis --help`, each with its options."""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from world import demand  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "commands.md"
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
EVERYWHERE = {"-h", "--help"}


def of_help(world, *words):
    """Returns the subcommands and options in a help text."""
    commands, options, section = [], set(), ""
    for line in world.stasis(*words, "--help").out.splitlines():
        if re.match(r"\S.*:$", line):
            section = line
        elif section == "Subcommands:" and (found := re.match(r"  ([a-z][a-z-]*)", line)):
            commands.append(found[1])
        elif section == "Options:" and (found := re.match(r"  (-\S+)", line)):
            options.update(OPTION.findall(found[1]))
    return commands, options - EVERYWHERE


def of_page():
    """Returns {command: options} from the tables; an empty first cell continues the command above."""
    page, names = {}, []
    commands = PAGE.read_text()
    everyone = re.search(r"^These options are accepted before and after any command:.*?\n\n", commands, re.M | re.S)[0]
    page[""] = set(OPTION.findall(everyone)) - EVERYWHERE
    for line in commands[commands.index("## Jobs"):].splitlines():
        cells = re.split(r" ?\| ?", line)
        if len(cells) < 4 or cells[1] in ("command", "---"):
            continue
        if cells[1] == "all four":
            names = ["suspend", "resume", "dump", "restore"]
        elif cells[1]:
            names = [re.match(r"[a-z -]*[a-z](?![A-Z])", text)[0].strip() for text in re.findall(r"`([^`]+)`", cells[1])]
        only = re.findall(r"\(`([a-z]+)`\)", cells[2])
        for name in names:
            options = page.setdefault(name, set())
            if not only or name.split()[-1] in only:
                options.update(OPTION.findall(cells[2]))
    return page


def run(world):
    verbs, everywhere = of_help(world)
    help_texts = {"": everywhere}
    for verb in verbs:
        inner, options = of_help(world, verb)
        help_texts.update({f"{verb} {name}": of_help(world, verb, name)[1] for name in inner})
        if options or not inner:
            help_texts[verb] = options
    page = of_page()
    demand(len(help_texts) > 30, f"the help texts were not understood: {help_texts}")
    for name in sorted(help_texts.keys() | page.keys()):
        demand(name in page, f"docs/commands.md does not have `stasis {name}`")
        demand(name in help_texts, f"docs/commands.md has `stasis {name}`, which does not exist")
        demand(page[name] == help_texts[name],
               f"`stasis {name}`: only in docs/commands.md {sorted(page[name] - help_texts[name])}, "
               f"only in the help text {sorted(help_texts[name] - page[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(one_world.main(run))
