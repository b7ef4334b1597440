#!/usr/bin/env python3
"""Checks that every file which a page, a comment or a script names below docs/ exists, and every relative link.

usage: tests/source/doc_links_test.py [CHECKOUT]

Pages may also name files of the other folders, from the checkout, from docs/ or from their own folder. A path with a
placeholder (NAME, *, …) is skipped.
"""

import pathlib
import re
import subprocess
import sys

IN_DOCS = re.compile(r'(?<![\w/.-])docs/[\w./-]+')
IN_PAGES = re.compile(r'`((?:docs|decisions|tests|tools|src|softgpu|workloads|packaging|proto|cmake)/[\w./-]+)`')
RELATIVE = re.compile(r'\]\((?!https?:|#)([^)#\s]+)')
SIBLING = re.compile(r'`([a-z][a-z0-9-]+\.md)`')
PLACEHOLDER = re.compile(r'[A-Z]{3,}')
# The history names files as they were called at the time.
SKIPPED = {'CHANGELOG.md'}


def tracked(root):
    out = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=root, check=True,
                         capture_output=True, text=True).stdout
    return [pathlib.Path(name) for name in out.split('\0') if name]


def exists(root, name):
    path = root / name
    # A component is named by its files' common stem, as in src/agent/gate.
    return path.exists() or any(path.parent.glob(path.name + '.*'))


def targets(path, text):
    """Yields the paths that a file names, each with the folders in which it may be."""
    for found in IN_DOCS.finditer(text):
        yield found[0].rstrip('./-'), ['.']
    if path.suffix != '.md':
        return
    for found in IN_PAGES.finditer(text):
        yield found[1].rstrip('./'), ['.', 'docs', path.parent]
    for found in RELATIVE.finditer(text):
        yield found[1], [path.parent]
    if path.parts[:2] == ('docs', 'decisions'):
        for found in SIBLING.finditer(text):
            yield found[1], [path.parent]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.').resolve()
    checked, errors = 0, set()
    for path in tracked(root):
        if path.name in SKIPPED or path.suffix not in {'.md', '.cc', '.h', '.c', '.py', '.sh', '.proto', '.yml'}:
            continue
        if not (root / path).is_file():
            continue
        for name, folders in targets(path, (root / path).read_text(errors='replace')):
            if PLACEHOLDER.search(name.removesuffix('README.md')):
                continue
            checked += 1
            if not any(exists(root / folder, name) for folder in folders):
                errors.add(f'{path}: there is no {name}')
    for error in sorted(errors):
        print(error)
    print(f'{checked} paths, {len(errors)} errors')
    return 1 if errors or checked < 200 else 0


if __name__ == '__main__':
    sys.exit(main())
