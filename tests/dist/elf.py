"""What a program asks of the machine it runs on, by readelf."""

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


def needed(path: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf("-d", path))


def search_path(path: pathlib.Path) -> list[str]:
    found = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", _readelf("-d", path))
    return [entry for line in found for entry in line.split(":")]


def glibc_floor(path: pathlib.Path) -> tuple[int, ...]:
    """The youngest glibc version of which a symbol is needed, as (2, 34)."""
    # Only the versions that are needed, not those that a library defines.
    wanted = _readelf("-V", path).partition("Version needs section")[2]
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", wanted)]
    return max(versions, default=(0,))
