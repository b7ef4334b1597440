"""beside_nccl_socket.py PROGRAM ARG…: the program, holding a socket as a communicator of NCCL has."""
import os
import socket
import sys

held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
held.bind(f"\0/tmp/nccl-socket-0-{os.getpid():x}")
held.set_inheritable(True)
os.execv(sys.argv[1], sys.argv[1:])
