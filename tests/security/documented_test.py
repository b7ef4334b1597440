#!/usr/bin/env python3
"""docs/security.md names only existing tests, and every test of this directory."""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parents[1]


def main():
    page = (SOURCES / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(\w+\.(?:py|cc)): (\w+)`", page))
    problems = [] if len(named) > 20 else [f"only {len(named)} tests are named"]
    for file, name in sorted(named):
        found = [p for folder in ("src", "tests") for p in (SOURCES / folder).rglob(file)]
        if not any(re.search(rf"\b{name}\b", p.read_text()) for p in found):
            problems.append(f"the page names {file}: {name}, which does not exist")
    for path in sorted(HERE.glob("*_test.py")):
        for name in re.findall(r"^def (\w+)\(new\):", path.read_text(), re.M):
            if (path.name, name) not in named:
                problems.append(f"the page does not name {path.name}: {name}")
    defended = page[page.index("## Defended"):page.index("## Not defended")]
    problems += [f"a line without a test: {line}" for line in defended.splitlines()
                 if line.startswith("| ") and not line.startswith("| what") and not re.search(r"`\w+\.\w+: \w+`", line)]
    print("\n".join(problems) or "all tests passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
