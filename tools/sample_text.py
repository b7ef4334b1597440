#!/usr/bin/env python3
"""Draws a random sample of the project's text, for a review by a reader who has not seen the code.

usage: tools/sample_text.py [--seed N] [--comments N] [--messages N] [--sentences N] [FOLDER…]

Prints N comments, N messages and N sentences of documentation, each with its file and line, from the whole
checkout or from the named folders and files. With the same seed and the same tree the sample is the same.
"""

import argparse
import pathlib
import random
import re
import subprocess

CODE = ('*.cc', '*.h', '*.c', '*.cu', '*.def')
FOLDERS = ('src', 'softgpu', 'workloads')


def tracked(*patterns):
    out = subprocess.run(['git', 'ls-files', '-z', '--', *patterns], check=True, capture_output=True, text=True)
    return [pathlib.Path(name) for name in out.stdout.split('\0') if name]


def code_files():
    return [path for path in tracked(*CODE) if path.parts[0] in FOLDERS]


def comments(path):
    """Yields blocks of whole-line // comments of at least four words."""
    block, start = [], 0
    for number, line in enumerate(path.read_text(errors='replace').splitlines() + [''], 1):
        text = line.strip()
        if text.startswith('//'):
            start = start or number
            block.append(text.lstrip('/').strip())
            continue
        joined = ' '.join(block)
        if len(joined.split()) >= 4:
            yield path, start, joined
        block, start = [], 0


STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
REGEX = re.compile(r'\.\*|\(\?:|\\\\[d(\[]')


def messages(path):
    """Yields string literals of at least four words, with adjacent ones joined: messages, hints and
    help texts. Omits regular expressions."""
    if path.name.endswith('_test.cc'):
        return
    source = re.sub(r'^\s*//.*$', '', path.read_text(errors='replace'), flags=re.MULTILINE)
    # The first alternative skips the character '"', which does not start a string.
    for match in re.finditer(r'''\'\\?"\'|"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*''', source):
        if match.group(0).startswith("'"):
            continue
        text = ''.join(STRING.findall(match.group(0)))
        if len(text.split()) >= 4 and not REGEX.search(text):
            yield path, source.count('\n', 0, match.start()) + 1, text


def sentences(path):
    """Yields sentences of at least five words outside of code blocks, tables and headings."""
    text = path.read_text(errors='replace')
    text = re.sub(r'^```.*?^```', lambda match: '\n' * match.group(0).count('\n'), text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r'^(?:    |\t|\||#).*$', '', text, flags=re.MULTILINE)
    for paragraph in re.finditer(r'(?:.+\n?)+', text):
        line = text.count('\n', 0, paragraph.start()) + 1
        for sentence in re.split(r'(?<=[.!?])\s+', ' '.join(paragraph.group(0).split())):
            if len(sentence.split()) >= 5:
                yield path, line, sentence


def draw(name, found, count, seed):
    found = sorted(set(found))
    chosen = random.Random(f'{seed} {name}').sample(found, min(count, len(found)))
    print(f'## {name}: {len(chosen)} of {len(found)}\n')
    for number, (path, line, text) in enumerate(sorted(chosen), 1):
        print(f'{number}. {path}:{line}: {text}')
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--comments', type=int, default=100)
    parser.add_argument('--messages', type=int, default=100)
    parser.add_argument('--sentences', type=int, default=60)
    parser.add_argument('under', nargs='*', type=pathlib.Path)
    arguments = parser.parse_args()

    def wanted(path):
        return not arguments.under or any(path.is_relative_to(folder) for folder in arguments.under)

    code = [path for path in code_files() if wanted(path)]
    draw('comments', (item for path in code for item in comments(path)), arguments.comments, arguments.seed)
    draw('messages', (item for path in code for item in messages(path)), arguments.messages, arguments.seed)
    pages = [path for path in tracked('README.md', 'CONTRIBUTING.md', 'docs/*.md', '*README.md') if wanted(path)]
    draw('sentences', (item for path in pages for item in sentences(path)), arguments.sentences, arguments.seed)


if __name__ == '__main__':
    main()
