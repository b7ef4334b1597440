"""Derives the possible contents of a disk after a power failure from a record of all changes to a
directory (record.c) and its previous content.

The disk promises only what POSIX does. The content of a file is durable after an fsync of the file,
its names after an fsync of their directory. Until then each change may be present or not,
independent of others; a write may be partly present, by sector. A rename within a directory is one
change, one into another directory is two.
"""

import hashlib
import os
import random
import struct

HEADER = struct.Struct("<IIQQQIIQ")
MAGIC = 0x31434552
(CREATE, MKDIR, LINK, RENAME, REMOVE, WRITE, TRUNCATE, ALLOCATE, PUNCH, SYNC, SAID, CONTENT) = range(1, 13)
PAGE = 4096
NEVER = 1 << 60


class Node:
    """A file or directory, independent of its names."""

    def __init__(self, is_folder, content=b"", entries=None):
        self.is_folder = is_folder
        self.content = content        # of a file, when the record starts
        self.entries = entries or {}  # of a directory, when the record starts


class Change:
    """One change that may be on the disk or not. An fsync of the node `where` makes it durable."""

    def __init__(self, index, where, what, text):
        self.index = index    # index in the record
        self.where = where
        self.what = what
        self.text = text
        self.lasts = NEVER    # durable from this record on


class Names(Change):
    def __init__(self, index, where, adds, removes, text):
        super().__init__(index, where, "names", text)
        self.adds, self.removes = adds, removes  # lists of (name, node)

    def apply(self, entries):
        for name, node in self.removes:
            if entries.get(name) is node:
                del entries[name]
        entries.update(self.adds)


class Bytes(Change):
    def __init__(self, index, where, kind, offset, length, data, text):
        super().__init__(index, where, "bytes", text)
        self.kind, self.offset, self.length, self.data = kind, offset, length, data

    def apply(self, content, torn):
        end = self.offset + self.length
        if self.kind == TRUNCATE:
            del content[self.length:]
            content.extend(bytes(self.length - len(content)))
        elif self.kind == PUNCH:
            stop = min(end, len(content))
            content[self.offset:stop] = bytes(max(0, stop - self.offset))
        elif self.kind == ALLOCATE:
            content.extend(bytes(max(0, end - len(content))))
        elif torn is None:
            content.extend(bytes(max(0, end - len(content))))
            content[self.offset:end] = self.data
        else:
            self._tear(content, torn)

    def _tear(self, content, torn):
        """Applies some sectors of the write, with or without the new file length."""
        sector, seed, longer = torn
        pick = random.Random(seed)
        if longer:
            content.extend(bytes(max(0, self.offset + self.length - len(content))))
        for at in range(0, self.length, sector):
            if pick.random() < 0.5:
                continue
            piece = self.data[at:at + sector]
            start = self.offset + at
            content.extend(bytes(max(0, start + len(piece) - len(content))))
            content[start:start + len(piece)] = piece


class State:
    """The changes present after a power failure following record `cut`."""

    def __init__(self, cut, there, torn, why):
        self.cut, self.there, self.torn, self.why = cut, there, torn, why


class Disk:
    """Reads `root` now; call `read` after the commands have finished."""

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self._by_inode = {}
        self.top = self._scan(self.root)
        self.changes = []
        self.said = []      # (record, {promises})
        self.records = 0
        self._cache = {}

    def _scan(self, path):
        st = os.lstat(path)
        known = self._by_inode.get(st.st_ino)
        if known:
            return known
        if os.path.isdir(path):
            node = Node(True, entries={n: self._scan(os.path.join(path, n)) for n in os.listdir(path)})
        else:
            with open(path, "rb") as file:
                node = Node(False, file.read())
        self._by_inode[st.st_ino] = node
        return node

    # Reading the record.

    def read(self, log, promise):
        """`promise(tree)` returns the promises made by an output; a tree is a dict of dicts and
        nodes."""
        live = {}

        def entries(node):
            return live.setdefault(node, dict(node.entries))

        def find(path):
            node = self.top
            for name in os.path.relpath(path, self.root).split("/"):
                if name != ".":
                    node = entries(node)[name]
            return node

        def split(path):
            return find(os.path.dirname(path)), os.path.basename(path)

        def names(folder, adds, removes, text):
            change = Names(self.records, folder, adds, removes, text)
            change.apply(entries(folder))
            self.changes.append(change)

        def data(node, kind, offset, length, content, text):
            self.changes.append(Bytes(self.records, node, kind, offset, length, content, text))

        def tree(node):
            return {n: tree(c) if c.is_folder else c for n, c in entries(node).items()}

        latest = {}  # last contents read, by inode
        with open(log, "rb") as file:
            while header := file.read(HEADER.size):
                magic, kind, inode, offset, length, path_bytes, other_bytes, data_bytes = HEADER.unpack(header)
                assert magic == MAGIC, "the record is broken"
                path = file.read(path_bytes).decode()
                other = file.read(other_bytes).decode()
                content = file.read(data_bytes)
                short = os.path.relpath(path, self.root) if path else ""
                if kind in (CREATE, MKDIR):
                    node = self._by_inode[inode] = Node(kind == MKDIR)
                    folder, name = split(path)
                    names(folder, [(name, node)], [], f"make {short}")
                elif kind == CONTENT:
                    latest[inode] = content
                    if inode in self._by_inode and not path.startswith(self.root):
                        data(self._by_inode[inode], TRUNCATE, 0, 0, b"", f"replace {short}")
                        data(self._by_inode[inode], WRITE, 0, len(content), content, f"write {short}")
                elif kind in (LINK, RENAME):
                    node = self._by_inode.get(inode)
                    to, name = split(other)
                    if node is None:  # created by another process
                        node = self._by_inode[inode] = Node(False)
                        data(node, WRITE, 0, len(latest[inode]), latest[inode], f"bytes of {short}")
                    text = f"{'link' if kind == LINK else 'rename'} {short} to {os.path.relpath(other, self.root)}"
                    came_from = split(path) if kind == RENAME else None
                    removes = [(came_from[1], node)] if came_from else []
                    if came_from and came_from[0] is not to:
                        names(came_from[0], [], removes, text + " (old name)")
                        removes = []
                    names(to, [(name, node)], removes, text)
                elif kind == REMOVE:
                    folder, name = split(path)
                    if name in entries(folder):
                        names(folder, [], [(name, entries(folder)[name])], f"remove {short}")
                elif kind in (WRITE, TRUNCATE, ALLOCATE, PUNCH):
                    data(self._by_inode[inode], kind, offset, length, content,
                         f"{ {WRITE: 'write', TRUNCATE: 'truncate', ALLOCATE: 'allocate', PUNCH: 'punch'}[kind] } "
                         f"{offset}+{length} of inode {inode}")
                elif kind == SYNC:
                    for change in self.changes:
                        if change.where is self._by_inode.get(inode):
                            change.lasts = min(change.lasts, self.records)
                elif kind == SAID:
                    self.said.append((self.records, promise(tree(self.top))))
                self.records += 1
        self.syncs = sorted({c.lasts for c in self.changes if c.lasts != NEVER})

    def promised(self, cut):
        found = None
        for index, promise in self.said:
            if index <= cut:
                found = promise
        return found

    # Possible states.

    def pending(self, cut):
        return [c for c in self.changes if c.index <= cut < c.lasts]

    def states(self, seed, first, some):
        """After every record: no pending change, all of them, and a random subset. Before each sync
        and at the end also: each one missing (at most `some`), each write torn, and more random
        subsets."""
        pick = random.Random(seed)

        def tear():
            return (pick.choice([512, 4096]), pick.randrange(1 << 30), pick.random() < 0.7)

        def part(pending):
            share = pick.random()
            there = [c for c in pending if pick.random() < share]
            return there, {c: tear() for c in there if c.what == "bytes" and c.kind == WRITE and pick.random() < 0.3}

        before_syncs = {s - 1 for s in self.syncs} | {self.records - 1}
        for cut in range(first, self.records):
            pending = self.pending(cut)
            yield State(cut, [], {}, "nothing that was not synced")
            if not pending:
                continue
            yield State(cut, pending, {}, "all of it")
            yield State(cut, *part(pending), "a random part")
            if cut not in before_syncs:
                continue
            for change in pick.sample(pending, min(some, len(pending))):
                yield State(cut, [c for c in pending if c is not change], {}, f"all but: {change.text}")
                if change.what == "bytes" and change.kind == WRITE:
                    yield State(cut, pending, {change: tear()}, f"torn: {change.text}")
                else:
                    yield State(cut, [change], {}, f"only: {change.text}")
            for _ in range(4):
                yield State(cut, *part(pending), "a random part")

    def tree(self, state):
        """Returns {name: dict or (node, changes)} of a state."""
        chosen = set(state.there)
        entries, data = {}, {}
        for change in self.changes:
            if change.index > state.cut:
                break
            if state.cut < change.lasts and change not in chosen:
                continue
            if change.what == "names":
                change.apply(entries.setdefault(change.where, dict(change.where.entries)))
            else:
                data.setdefault(change.where, []).append((change, state.torn.get(change)))

        def look(node):
            if not node.is_folder:
                return node, tuple(data.get(node, ()))
            return {n: look(c) for n, c in entries.get(node, node.entries).items()}
        return look(self.top)

    def content(self, node, changes):
        key = (node, tuple((id(c), torn) for c, torn in changes))
        if key not in self._cache:
            content = bytearray(node.content)
            for change, torn in changes:
                change.apply(content, torn)
            if len(self._cache) > 300:
                self._cache.clear()
            self._cache[key] = (bytes(content), hashlib.blake2b(content).digest())
        return self._cache[key]

    def signature(self, tree, leave_out=lambda path: False, path=""):
        """Returns a digest. Trees with equal digests have equal content."""
        digest = hashlib.blake2b()
        for name in sorted(tree):
            below = f"{path}/{name}" if path else name
            if leave_out(below):
                continue
            found = tree[name]
            what = self.signature(found, leave_out, below) if isinstance(found, dict) else \
                self.content(*found)[1]
            digest.update(b"%d %s " % (isinstance(found, dict), name.encode()) + what)
        return digest.digest()

    def put(self, tree, folder):
        """Writes the tree as files; hard links are kept, and zero pages are holes."""
        made = {}

        def make(entries, path):
            os.mkdir(path, 0o700)
            for name, found in entries.items():
                to = f"{path}/{name}"
                if isinstance(found, dict):
                    make(found, to)
                elif found[0] in made:
                    os.link(made[found[0]], to)
                else:
                    made[found[0]] = to
                    self._put_file(self.content(*found)[0], to)
        make(tree, folder)

    @staticmethod
    def _put_file(content, path):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        zeros = bytes(PAGE)
        at = 0
        while at < len(content):
            end = at
            while end < len(content) and content[end:end + PAGE] != zeros:
                end += PAGE
            if end > at:
                os.pwrite(fd, memoryview(content)[at:end], at)
            at = end + PAGE
        os.truncate(fd, len(content))
        os.close(fd)

    def check_record(self):
        """Checks that the complete record gives the directory's real content, so that no change was
        missed."""
        tree = self.tree(State(self.records, self.changes, {}, "all"))

        def compare(entries, path):
            found = sorted(os.listdir(path))
            assert found == sorted(entries), f"{path} holds {found}, recorded is {sorted(entries)}"
            for name, what in entries.items():
                if isinstance(what, dict):
                    compare(what, f"{path}/{name}")
                    continue
                with open(f"{path}/{name}", "rb") as file:
                    assert file.read() == self.content(*what)[0], f"{path}/{name} is not as recorded"
        compare(tree, self.root)
