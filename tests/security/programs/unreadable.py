"""unreadable.py HOW FOLDER [FUSE_FILE]: a program that uses the GPU and blocks every process that
reads its data.

  header        the page of the agent's header is never supplied (userfaultfd)
  fuse-header   the file with the agent's header is FUSE_FILE
  fuse-socket   the agent's socket is FUSE_FILE
"""

import ctypes
import fcntl
import mmap
import os
import platform
import signal
import struct
import sys

PAGE = mmap.PAGESIZE
USERFAULTFD = 282 if platform.machine() == "aarch64" else 323
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
# agent_protocol/protocol.h: AgentHeader.
MAGIC, VERSION, TOLD = b"Stasis agent\r\n\1\0", 2, 1 << 31

libc = ctypes.CDLL(None, use_errno=True)


def use_gpu():
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0


def withhold(address):
    """Makes the next access to this page block forever."""
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(fd, UFFDIO_API, struct.pack("=QQQ", 0xAA, 0, 0))
    fcntl.ioctl(fd, UFFDIO_REGISTER, struct.pack("=QQQQ", address, PAGE, 1, 0))


def map_library(path):
    fd = os.open(path, os.O_RDWR)
    libc.mmap.restype = ctypes.c_void_p
    return libc.mmap(None, ctypes.c_size_t(PAGE), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd,
                     ctypes.c_long(0))


def header(control):
    return struct.pack("=16sHHiiIQ20s4x", MAGIC, VERSION, 64, os.getpid(), control, TOLD, 4711, b"")


def main(how, folder, fuse_file=None):
    library = f"{folder}/libstasis-agent.so"
    use_gpu()
    if how == "header":
        with open(library, "wb") as file:
            file.truncate(PAGE)
        withhold(map_library(library))
    elif how == "fuse-header":
        map_library(fuse_file)
    elif how == "fuse-socket":
        with open(library, "wb") as file:
            file.write(header(os.open(fuse_file, os.O_RDONLY)).ljust(PAGE, b"\0"))
        map_library(library)
    print("READY", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
