#!/usr/bin/env python3
"""man_pages.py TREE DOCS OUT [EMULATOR...]: writes the man pages of an installed tree to the folder OUT. Pages of
commands come from their help texts; the exit codes, stasis-config(5) and stasisd(8) come from the pages in DOCS.
EMULATOR is the beginning of a command line that runs programs of the tree, if this machine cannot run them itself."""
import pathlib
import re
import subprocess
import sys

# CLI11 puts descriptions in this column.
COLUMN = 30
PLACE = ("Pages such as docs/jobs.md are below /usr/share/doc/stasis/ if Stasis was installed as a Debian package, and "
         "below the folder share/ of the tarball.")


def fail(message):
    sys.exit(f"man_pages.py: {message}")


def plain(text):
    """Escapes what roff would interpret."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def rich(text):
    """Converts the code, bold text and links of one paragraph of Markdown."""
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"`([^`]+)`|\*\*(.+?)\*\*", text)
    out = ""
    for word, code, bold in zip(parts[::3], parts[1::3] + [None], parts[2::3] + [None]):
        # A bold phrase may itself contain code.
        strong = code or (bold or "").replace("`", "")
        out += plain(word).removeprefix("\\&") + (f"\\fB{plain(strong)}\\fR" if strong else "")
    return "\\&" + out if out.startswith((".", "'")) else out


class Help:
    """The help text of one command: description, usage, {section: [(term, text)]}, closing paragraphs."""

    def __init__(self, *command):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
        if done.returncode != 0 or "sage: " not in done.stdout:
            fail(f"`{' '.join(map(str, command))} --help` printed no help text: {done.stderr or done.stdout}")
        self.description, rest = re.split(r"^[Uu]sage: ", done.stdout, maxsplit=1, flags=re.M)
        self.usage, _, rest = rest.partition("\n")
        # softgpu lists its options without a heading.
        self.sections, self.end = {"Options": []}, ""
        rows = self.sections["Options"]
        for line in rest.splitlines():
            if found := re.fullmatch(r"(\w+):", line):
                rows = self.sections.setdefault(found[1], [])
            elif line.startswith(" " * COLUMN) and rows:
                rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip())
            elif found := re.fullmatch(r"  (\S.*?)(?: {2,}(\S.*))?", line):
                rows.append((found[1], found[2] or ""))
            elif line.strip():
                self.end += line.strip() + "\n"

    def commands(self):
        """Returns the names of the subcommands; the first of each, without its aliases."""
        return [term.split(",")[0] for term, _ in self.sections.get("Subcommands", [])]


def term_of(text):
    """Converts "--spill TEXT Excludes: --no-spill" or "run, exec": names bold, the rest as it is."""
    names, rest = re.fullmatch(r"((?:\S+, )*\S+)(.*)", re.sub(r"\{false\}", "", text)).groups()
    return ", ".join(f"\\fB{plain(name)}\\fR" for name in re.split(", ?", names)) + plain(rest)


def rows_of(rows):
    return [line for term, text in rows for line in (".TP", term_of(term), rich(text) or "\\&")]


def header(name, section, version, summary):
    summary = " ".join(summary.split())
    if not summary.endswith("..."):
        summary = summary.removesuffix(".")
    return [f'.TH {plain(name.upper())} {section} "" "Stasis {version}" "Stasis"', ".nh", ".ad l", ".SH NAME",
            f"{plain(name)} \\- {plain(summary)}"]


def body_of(help_text):
    lines = [line for name, rows in help_text.sections.items() if name != "Subcommands" and rows
             for line in (f".SS {name}", *rows_of(rows))]
    return lines + ([".PP", rich(help_text.end.replace("\n", " ").strip())] if help_text.end else [])


def command_page(name, command, version, more):
    """Returns the page of a command, with its subcommands as sections."""
    text = Help(*command)
    page = header(name, 1, version, text.description)
    page += [".SH SYNOPSIS", plain(text.usage), ".SH DESCRIPTION", rich(text.description.strip()), *body_of(text)]
    for inner in text.commands() if name != "stasis" else []:
        nested = Help(*command, inner)
        page += [f".SH {inner.upper()}", rich(nested.description.strip()), ".PP", plain(nested.usage), *body_of(nested)]
    return page + more


def cells_of(line):
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def table(lines):
    """Converts each row to an entry: its first cell (or that of the row above), then the others with their headings. In
    a table with a single row, each cell becomes an entry."""
    heads, rows, first = cells_of(lines[0]), [], ""
    if len(lines) == 3:
        return [line for head, cell in zip(heads, cells_of(lines[2])) for line in (".TP", rich(head), rich(cell))]
    for line in lines[2:]:
        cells = cells_of(line)
        first = cells[0] or first
        named = [(head if len(heads) > 2 else "", cell) for head, cell in zip(heads[1:], cells[1:]) if cell]
        texts = [f"{head}: {cell}" if head else cell for head, cell in named]
        rows += [".TP", rich(first), "\n.br\n".join(rich(text) for text in texts) or "\\&"]
    return rows


def markdown(text):
    """Converts the Markdown that docs/ uses: headings, paragraphs, lists, tables and indented examples."""
    out = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        if found := re.match(r"##+ (.*)", lines[0]):
            out += [f".SH {plain(found[1].upper())}"]
            lines = lines[1:]
        if not lines or not lines[0]:
            continue
        if lines[0].startswith("|"):
            out += table(lines)
        elif lines[0].startswith("    "):
            out += [".PP", ".RS 4", ".EX", *(plain(line[4:]) for line in lines), ".EE", ".RE"]
        elif lines[0].startswith("- "):
            for item in re.split(r"^- ", block, flags=re.M)[1:]:
                out += [".IP \\(bu 2", rich(" ".join(item.split()))]
        else:
            out += [".PP", rich(" ".join(block.split()))]
    return out


def docs_page(path, name, section, version, summary):
    text = re.sub(r"\A# .*\n+", "", path.read_text())
    return [*header(name, section, version, summary), ".SH DESCRIPTION", *markdown(text)]


def see_also(*names):
    return [".SH SEE ALSO", ", ".join(f"\\fB{plain(name)}\\fR({section})" for name, section in names)]


def exit_codes(docs):
    found = re.search(r"^## Exit codes\n(.*?)(?=^## )", (docs / "commands.md").read_text(), re.M | re.S)
    if not found:
        fail("docs/commands.md has no section on exit codes")
    return [".SH EXIT STATUS", *markdown(found[1])]


def pages(tree, docs, emulator):
    """Yields (file name, lines)."""
    stasis = [*emulator, tree / "bin/stasis"]
    version = subprocess.run([*stasis, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    top = Help(*stasis)
    yield "stasis.1", command_page(
        "stasis", stasis, version,
        [".SS Commands", *rows_of(top.sections["Subcommands"]), *exit_codes(docs), *see_also(
            *((f"stasis-{verb}", 1) for verb in top.commands()), ("stasis-config", 5), ("stasisd", 8)), ".PP", PLACE])
    for verb in top.commands():
        yield f"stasis-{verb}.1", command_page(f"stasis-{verb}", [*stasis, verb], version,
                                               see_also(("stasis", 1), ("stasis-config", 5)))
    softgpu = Help(*emulator, tree / "bin/softgpu")
    yield "softgpu.1", [*header("softgpu", 1, version, "run a command on software GPUs"),
                        ".SH SYNOPSIS", plain(softgpu.usage), ".SH DESCRIPTION", *body_of(softgpu)]
    yield "stasis-config.5", [*docs_page(docs / "config.md", "stasis-config", 5, version, "settings of Stasis"),
                              *see_also(("stasis", 1))]
    yield "stasisd.8", [*docs_page(docs / "daemon.md", "stasisd", 8, version, "daemon of Stasis"),
                        *see_also(("stasis", 1), ("stasis-daemon", 1))]


def main():
    tree, docs, out = map(pathlib.Path, sys.argv[1:4])
    for name, lines in pages(tree.resolve(), docs, sys.argv[4:]):
        folder = out / f"man{name[-1]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
