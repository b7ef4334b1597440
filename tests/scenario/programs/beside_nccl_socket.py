"""beside_nccl_socket.py PROGRAM ARG…: runs the program with a socket like an NCCL communicator's."""
import os
import socket
import sys

held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
held.bind(f"\0/tmp/nccl-socket-0-{os.getpid():x}")
held.set_inheritable(True)
os.execv(sys.argv[1], sys.argv[1:])
