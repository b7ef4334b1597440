"""The requirements of a program on its machine, from readelf."""

import pathlib
import re
import subprocess

# The parts of glibc: the only libraries that may come from the system.
GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so\.\d+$")


def is_elf(path: pathlib.Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _readelf(option: str, path: pathlib.Path) -> str:
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def machine(path: pathlib.Path) -> str:
    """Returns the processor that a program is for: "x86-64" or "AArch64"."""
    found = re.search(r"^\s+Machine:\s+(.*)$", _readelf("-h", path), re.M)
    return found[1].removeprefix("Advanced Micro Devices ").lower().replace("aarch64", "AArch64") if found else ""


def needed(path: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf("-d", path))


def search_path(path: pathlib.Path) -> list[str]:
    found = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", _readelf("-d", path))
    return [entry for line in found for entry in line.split(":")]


def hardening_missing(path: pathlib.Path) -> list[str]:
    """Returns the hardening features that a program or library lacks."""
    header, segments, dynamic = (_readelf(option, path) for option in ("-h", "-l", "-d"))
    symbols = _readelf("--dyn-syms", path)
    is_program = re.search(r"^\s+INTERP\s", segments, re.M) is not None
    has = {
        "position-independent code": re.search(r"Type:\s+DYN\b", header)
        and (not is_program or re.search(r"\(FLAGS_1\).*\bPIE\b", dynamic)),
        "RELRO": re.search(r"^\s+GNU_RELRO\s", segments, re.M),
        "BIND_NOW": re.search(r"\(FLAGS(_1)?\).*\b(BIND_)?NOW\b", dynamic),
        "a stack that is not executable": re.search(r"^\s+GNU_STACK\s.*\sRW\s", segments, re.M),
        "no segment that is writable and executable": not re.search(r"^\s+LOAD\s.*\sRWE\s", segments, re.M),
        "the stack protector": "__stack_chk_fail" in symbols,
        "FORTIFY": re.search(r"\b__\w+_chk(@|\b)", symbols.replace("__stack_chk_fail", "")),
    }
    return [what for what, there in has.items() if not there]


def glibc_floor(path: pathlib.Path) -> tuple[int, ...]:
    """Returns the newest glibc version of a required symbol, as (2, 34)."""
    # Only required versions, not those that a library defines.
    wanted = _readelf("-V", path).partition("Version needs section")[2]
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", wanted)]
    return max(versions, default=(0,))
