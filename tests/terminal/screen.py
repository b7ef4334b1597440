"""A user's terminal running `stasis`, and a raw client of a job's shim."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import termios

import processes
from processes import wait_until
from world import demand

PATIENCE_S = 60
LEAVE = b"\x10\x11"  # ctrl-p ctrl-q


class Screen:
    def __init__(self, world, *words, size=(30, 100), env=None):
        self.words = words
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        slave = self.slave

        def lead():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([world.bin / "stasis", *map(str, words)], stdin=slave, stdout=slave,
                                        stderr=slave, env={**world.env, **(env or {})}, cwd=world.folder,
                                        preexec_fn=lead)
        world.own(self.process.pid)
        self.world = world
        self.text = ""
        self.seen = 0

    def read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EIO:
                    return
                raise
            if not data:
                return
            self.text += data.decode(errors="replace")

    def expect(self, text):
        """Waits until `text` is shown after the text expected last."""
        def shown():
            self.read()
            return self.text.find(text, self.seen) >= 0 or self.process.poll() is not None
        wait_until(shown, PATIENCE_S, lambda: f"no {text!r} on the screen of {self.words}:\n{self.text[-3000:]}")
        self.read()
        at = self.text.find(text, self.seen)
        demand(at >= 0, lambda: f"{self.words} ended with {self.process.returncode} and without {text!r}:\n"
                                f"{self.text[-3000:]}")
        self.seen = at + len(text)
        return self

    def type(self, keys):
        os.write(self.master, keys if isinstance(keys, bytes) else keys.encode())
        return self

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self):
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def wait(self, code):
        """Waits until the command has ended with this exit code and has restored the terminal."""
        def ended():
            if self.master >= 0:
                self.read()
            return self.process.poll() is not None
        wait_until(ended, PATIENCE_S, lambda: f"{self.words} does not end:\n{self.text[-3000:]}\n"
                                              f"{processes.describe(self.process.pid)}")
        self.world.disown(self.process.pid)
        demand(self.process.returncode == code,
               lambda: f"{self.words} ended with {self.process.returncode} and not {code}:\n{self.text[-3000:]}")
        if self.master >= 0:
            self.read()
            demand(termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was")
            self.hang_up()
        return self

    def leave(self):
        self.type(LEAVE)
        self.expect("detached")
        return self.wait(0)


HELLO, INPUT, SIZE, REFUSED, WELCOME, OUTPUT, SKIPPED, HOLDER = range(1, 9)
HEADER = struct.Struct("=IHHQ")
VERSION = 1


class Client:
    """A raw client for src/shim/terminal_protocol.h."""

    def __init__(self, folder, version=VERSION, wants_input=True, size=(0, 0)):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(f"{folder}/terminal")
        self.text = ""
        try:
            self.send(HELLO, value=size[0] << 16 | size[1], flags=int(wants_input), version=version)
        except BrokenPipeError:
            pass  # already rejected: the reason can still be read
        self.first = self.receive()

    def send(self, kind, payload=b"", value=0, flags=0, version=VERSION):
        self.socket.send(HEADER.pack(version, kind, flags, value) + payload)

    def receive(self):
        """Returns (kind, value, version), or None at the end; adds output to `text`."""
        try:
            packet = self.socket.recv(1 << 16)
        except ConnectionResetError:
            packet = self.socket.recv(1 << 16)  # the shim closed without reading everything
        if not packet:
            return None
        version, kind, _, value = HEADER.unpack_from(packet)
        if kind == OUTPUT:
            self.text += packet[HEADER.size:].decode(errors="replace")
        return kind, value, version

    def type(self, keys):
        self.send(INPUT, keys.encode())

    def expect(self, text):
        while text not in self.text:
            demand(self.receive() is not None, lambda: f"the end, and no {text!r} in:\n{self.text}")
        return self.text.split(text)[1]

    def close(self):
        self.socket.close()
