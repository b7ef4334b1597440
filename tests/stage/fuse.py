"""A FUSE file system with one file, whose server can stop answering. Speaks the kernel's protocol
without a library.

It simulates a user's file system, or a network file system whose server is gone: a process that
asks for uncached data blocks in the kernel.
"""

import os
import signal
import stat
import struct
import time

import isolate

# linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, FLUSH, RELEASE = 1, 2, 3, 14, 15, 25, 18
INIT, INTERRUPT, BATCH_FORGET = 26, 36, 42
ROOT, FILE = 1, 2
FOR_EVER = 1 << 30
NOSYS = 38


class FuseFile:
    """`path` is readable at once; after `stop_answering` no request is answered any more."""

    def __init__(self, folder, name, content):
        self.folder, self.content = folder, content
        self.path = folder / name
        self._silent = folder.parent / f"{folder.name}-is-silent"
        folder.mkdir()
        self._connection = os.open("/dev/fuse", os.O_RDWR)
        isolate.mount("test", str(folder), "fuse", isolate.MS_NOSUID | isolate.MS_NODEV,
                      f"fd={self._connection},rootmode=40000,user_id=0,group_id=0,allow_other")
        self.server = os.fork()
        if self.server == 0:
            self._serve()
        os.close(self._connection)

    def stop_answering(self):
        self._silent.touch()

    def end(self):
        """Kills the server, which makes all blocked requests fail."""
        os.kill(self.server, signal.SIGKILL)
        os.waitpid(self.server, 0)
        isolate.unmount(str(self.folder))
        self.folder.rmdir()
        self._silent.unlink(missing_ok=True)

    def _serve(self):
        while True:
            try:
                request = os.read(self._connection, 1 << 20)
            except OSError:
                os._exit(0)
            _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            while self._silent.exists():
                time.sleep(3600)
            error, answer = self._answer(opcode, node, request[40:])
            os.write(self._connection, struct.pack("=IiQ", 16 + len(answer), -error, unique) + answer)

    def _attributes(self, node):
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT else (stat.S_IFREG | 0o644, len(self.content))
        return struct.pack("=6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _answer(self, opcode, node, body):
        # Names stay cached forever; attributes are requested each time.
        if opcode == INIT:
            return 0, struct.pack("=4IHHIIHHI7I", 7, 31, 1 << 16, 0, 0, 0, 1 << 16, 1, 16, 0, *[0] * 8)
        if opcode == LOOKUP:
            if body.rstrip(b"\0").decode() != self.path.name:
                return 2, b""
            return 0, struct.pack("=QQQQII", FILE, 0, FOR_EVER, 0, 0, 0) + self._attributes(FILE)
        if opcode == GETATTR:
            return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(node)
        if opcode == OPEN:
            return 0, struct.pack("=QII", 1, 0, 0)
        if opcode == READ:
            offset, size = struct.unpack_from("=QI", body, 8)
            return 0, self.content[offset:offset + size]
        if opcode in (FLUSH, RELEASE):
            return 0, b""
        return NOSYS, b""
