"""CRIU's blocks of packets in this process's network. Uses libnftables, which CRIU needs too."""

import ctypes
import re
import shutil
import subprocess


def run(command):
    """Runs a command of nft. Returns its output."""
    library = ctypes.CDLL("libnftables.so.1")
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_output_buffer.restype = library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_output(context)
    library.nft_ctx_buffer_error(context)
    code = library.nft_run_cmd_from_buffer(context, command.encode())
    out, err = library.nft_ctx_get_output_buffer(context), library.nft_ctx_get_error_buffer(context)
    library.nft_ctx_free(context)
    if code != 0:
        raise RuntimeError(f"{command}: {err.decode()}")
    return out.decode()


def criu_tables():
    return re.findall(r"^table inet (CRIU-\S+)$", run("list tables"), re.M)


def criu_rules():
    """Returns CRIU's rules of iptables, by their mark."""
    if shutil.which("iptables") is None:
        return []
    rules = subprocess.run(["iptables", "-S"], capture_output=True, text=True, check=True).stdout
    return [line for line in rules.splitlines() if "0xc114" in line]
