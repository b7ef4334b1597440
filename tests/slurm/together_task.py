"""A task of a step whose tasks share GPU memory and hold connections to each other, as the ranks of NCCL do.

    together_task.py FOLDER TASKS

The TASKS tasks of a node belong together; their numbers here are those on the node. Task 0 allocates memory on the GPU,
and the others open it by CUDA IPC. In each round task 0 sends the round's number to the others over connected sockets.
Each task writes to its own part of the memory, and task 0 checks all parts; then task 0 writes to its part, which the
others check in the next round. Every task prints `T<rank> ROUND <number>`, and `T<rank> FAILED ...` if it reads a wrong
value, and then ends with 9. Files in FOLDER/NODE are the commands: after `quit-TASK` appears, that task ends with the
code in the file. Task 0 goes on without the others.

SIGUSR1 is printed. So is SIGTERM, which ends the task with code 7."""

import array
import ctypes
import os
import pathlib
import signal
import socket
import sys
import time

WORDS = 1 << 20  # of memory for each task
driver = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    result = getattr(driver, name)(*args)
    if result != 0:
        fail(f"{name}: {result}")


def fail(reason):
    say(f"FAILED {reason}")
    os._exit(9)


def say(text):
    os.write(1, f"T{rank} {text}\n".encode())


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Memory:
    """Has WORDS words for each task."""

    def __init__(self, tasks):
        context = ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        self.address = ctypes.c_uint64()
        self.tasks = tasks

    def make(self):
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(4 * WORDS * self.tasks))
        for task in range(self.tasks):
            self.write(task, 0)
        handle = Handle()
        call("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        return ctypes.string_at(ctypes.byref(handle), 64)

    def open(self, text):
        handle = Handle()
        ctypes.memmove(ctypes.byref(handle), text, 64)
        call("cuIpcOpenMemHandle_v2", ctypes.byref(self.address), handle, 1)

    def write(self, task, number):
        words = array.array("I", [number * 16 + task]) * WORDS
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address.value + 4 * WORDS * task),
             ctypes.c_void_p(words.buffer_info()[0]), ctypes.c_size_t(4 * WORDS))
        call("cuCtxSynchronize")

    def expect(self, task, number):
        words = array.array("I", [0]) * WORDS
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(words.buffer_info()[0]),
             ctypes.c_uint64(self.address.value + 4 * WORDS * task), ctypes.c_size_t(4 * WORDS))
        if words != array.array("I", [number * 16 + task]) * WORDS:
            fail(f"the part of task {task} has {words[0]}, not {number * 16 + task}")


def receive(connection, size):
    text = b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            say("END")
            sys.exit(5)
        text += part
    return text


def quit_code(folder, task):
    try:
        text = (folder / f"quit-{task}").read_text()
    except FileNotFoundError:
        return None
    return int(text) if text else None


def lead(folder, memory):
    listener = socket.socket(socket.AF_UNIX)
    path = folder / "socket"
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    handle = memory.make()
    peers = {}
    while len(peers) + 1 < memory.tasks:
        connection, _ = listener.accept()
        peers[receive(connection, 1)[0]] = connection
        connection.sendall(handle)
    listener.close()
    number = 0
    while True:
        number += 1
        for peer, connection in list(peers.items()):
            code = quit_code(folder, peer)
            connection.sendall((number if code is None else (1 << 31) + code).to_bytes(4, "little"))
            if code is not None:
                connection.recv(1)
                del peers[peer]
        for peer, connection in peers.items():
            receive(connection, 1)
            memory.expect(peer, number)
        memory.write(0, number)
        say(f"ROUND {number}")
        code = quit_code(folder, 0)
        if code is not None:
            sys.exit(code)
        time.sleep(0.05)


def follow(folder, memory):
    connection = socket.socket(socket.AF_UNIX)
    while True:
        try:
            connection.connect(str(folder / "socket"))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
    connection.sendall(bytes([me]))
    memory.open(receive(connection, 64))
    while True:
        number = int.from_bytes(receive(connection, 4), "little")
        if number >> 31:
            sys.exit(number & 0xff)
        memory.expect(0, number - 1)
        memory.write(me, number)
        say(f"ROUND {number}")
        print(f"T{rank} error output {number}", file=sys.stderr, flush=True)
        connection.sendall(b".")


def terminate(_number, _frame):
    say("TERM")
    os._exit(7)


rank, me, node = (int(os.environ[f"SLURM_{name}"]) for name in ("PROCID", "LOCALID", "NODEID"))
signal.signal(signal.SIGUSR1, lambda *_: say("USR1"))
signal.signal(signal.SIGTERM, terminate)
shared = Memory(int(sys.argv[2]))
(lead if me == 0 else follow)(pathlib.Path(sys.argv[1]) / str(node), shared)
