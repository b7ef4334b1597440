#!/usr/bin/env python3
"""Checks the requirements of the agent's library on its process, and the symbols that it exports."""

import pathlib
import re
import shutil
import subprocess
import sys

FLOOR = (2, 28)


def readelf(option: str, path: pathlib.Path) -> str:
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def main() -> None:
    library = pathlib.Path(sys.argv[1])
    hooked = "".join(pathlib.Path(table).read_text() for table in sys.argv[2:])
    known = set(re.findall(r"\b(?:cu|hip)[A-Z]\w+", hooked))

    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library))
    # On arm64 the loader defines the canary of -fstack-protector.
    assert set(needed) - {"ld-linux-aarch64.so.1"} == {"libc.so.6"}, f"needs {needed}"

    wanted = readelf("-V", library).partition("Version needs section")[2]
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", wanted)}
    assert versions and max(versions) <= FLOOR, f"asks for glibc {max(versions)}"

    symbols = [line.split() for line in readelf("--dyn-syms", library).splitlines() if line.strip()[:1].isdigit()]
    defined = {s[7].split("@")[0] for s in symbols if s[6] not in ("UND", "ABS") and s[3] != "SECTION"}
    others = {s for s in defined if not s.startswith(("cu", "hip"))}
    assert others == {"dlsym", "dlvsym", "stasis_agent_header"}, f"exports {others}"
    strangers = {s for s in defined - others if re.sub(r"_(pt[sd][sz]|spt)$", "", s) not in known}
    assert not strangers, f"exports what it does not hook: {strangers}"
    assert {"cuMemAlloc_v2", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGraphLaunch", "cuGetProcAddress_v2"} <= defined
    assert {"hipMalloc", "hipLaunchKernel_spt", "hipStreamQuery_spt", "hipGraphLaunch"} <= defined
    assert "hipRuntimeGetVersion" not in defined and "hipStreamGetFlags" not in defined, "hooks what it need not"
    assert "cuDriverGetVersion" not in defined and "cuStreamGetFlags" not in defined, "hooks what it need not"

    is_arm64 = "AArch64" in readelf("-h", library)
    objdump = "aarch64-linux-gnu-objdump" if is_arm64 and shutil.which("aarch64-linux-gnu-objdump") else "objdump"
    # A barrier would wait for the doorbell of the previous launch (src/agent/gate.h).
    for name in ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuEventRecord",
                 "hipLaunchKernel", "hipMemcpyAsync"]:
        code = subprocess.run([objdump, "-d", "--no-show-raw-insn", f"--disassemble={name}", library], check=True,
                              capture_output=True, text=True).stdout
        assert re.search(r"\b(call|blr?)\b", code), f"no code of {name} was found"
        barrier = re.search(r"\b(lock\b.*|xchg\b.*\(.*|[ml]fence|cpuid|dmb|dsb)", code)
        assert not barrier, f"{name} has a barrier: {barrier[0]}"

    tls = re.search(r"^\s+TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)", readelf("-l", library), re.M)
    assert tls and int(tls[1], 16) <= 64, "initial-exec TLS is scarce"


if __name__ == "__main__":
    main()
