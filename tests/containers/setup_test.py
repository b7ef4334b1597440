#!/usr/bin/env python3
"""stasis container setup | check | remove, and cdi install, on a machine's own /etc/criu and /etc/cdi."""
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
from world import demand  # noqa: E402


class Machine:
    """Folders for the set-up, and a folder on PATH for fake container runtimes."""

    def __init__(self, world):
        self.world = world
        self.etc = world.folder / "etc"
        self.plugins = world.folder / "plugins"
        self.config, self.cdi = self.etc / "criu" / "default.conf", self.etc / "cdi"
        self.bin = world.folder / "bin"
        self.bin.mkdir()
        self.plugins.mkdir()
        (self.plugins / "stasis_plugin.so").touch()

    def program(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def __call__(self, verb, *words, expect=0):
        paths = ("--criu-config", self.config, "--cdi-dir", self.cdi, "--plugin-dir", self.plugins)
        return self.world.stasis("container", verb, *words, *paths, "--json", expect=expect,
                                 env={"PATH": f"{self.bin}:{self.world.env['PATH']}"})

    def finding(self, name, *words, expect=0):
        found = [f for f in self("check", *words, expect=expect).json()["findings"] if f["id"] == name]
        demand(len(found) == 1, f"{name}: {found}")
        return found[0]


def set_up_and_remove(machine):
    theirs = "tcp-established\n"
    machine.config.parent.mkdir(parents=True)
    machine.config.write_text(theirs)
    machine.config.chmod(0o640)
    done = machine("setup", "--runtime", "runc").json()
    demand(done["criu_config_changed"] and done["cdi_changed"] and done["ok"], f"{done}")
    text = machine.config.read_text()
    demand(text.startswith(theirs) and f"\nlibdir {machine.plugins}\ntimeout 600\n" in text, text)
    demand(machine.config.stat().st_mode & 0o777 == 0o640, "its mode has changed")
    found = machine.finding("container-daemon", "--runtime", "runc")
    demand(found["level"] == "warning" and "no stasisd is listening" in found["found"], f"{found}")
    again = machine("setup", "--runtime", "runc").json()
    demand(not again["criu_config_changed"] and not again["cdi_changed"], f"{again}")
    demand(machine.config.read_text() == text, "a second set-up has changed it")
    removed = machine("remove").json()
    demand(removed["criu_config_changed"] and removed["cdi_changed"], f"{removed}")
    demand(machine.config.read_text() == theirs, machine.config.read_text())
    demand(not list(machine.cdi.iterdir()), "the specification is still there")
    machine("remove")


def other_folder(machine):
    machine.config.write_text("libdir /usr/lib/criu\n")
    refused = machine("setup", "--runtime", "runc", expect=7)
    demand(f"{machine.config} already says `libdir /usr/lib/criu`" in refused.err, f"{refused}")
    demand(machine.config.read_text() == "libdir /usr/lib/criu\n", "it was changed")
    demand(not list(machine.cdi.iterdir()), "the specification was written")
    found = machine.finding("container-criu", "--runtime", "runc", expect=5)
    demand(found["level"] == "cannot" and "/usr/lib/criu" in found["found"], f"{found}")
    machine.config.unlink()


def specification(machine):
    machine("setup", "--runtime", "runc")
    document = json.loads((machine.cdi / "stasis.json").read_text())
    edits = document["devices"][0]["containerEdits"]
    mount, preload = edits["mounts"][0], edits["env"][0]
    folder = pathlib.Path(mount["hostPath"])
    demand(document["kind"] == "stasis.dev/agent" and document["devices"][0]["name"] == "on", f"{document}")
    demand((folder / "libstasis-agent.so").is_file(), f"there is no library in {folder}")
    demand(preload == f"LD_PRELOAD={mount['containerPath']}/libstasis-agent.so", preload)
    demand(pathlib.Path(mount["containerPath"]).name == folder.name, "it is not named by its build id")
    before = (folder / "libstasis-agent.so").stat()
    machine.world.stasis("cdi", "install", "--dir", machine.cdi)
    after = (folder / "libstasis-agent.so").stat()
    demand((before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "the library was written again")
    (machine.cdi / "stasis.json").write_text('{"kind": "other.dev/x"}')
    machine.world.stasis("cdi", "install", "--dir", machine.cdi, expect=7)
    (machine.cdi / "stasis.json").unlink()
    machine("remove")


def runtimes(machine):
    machine("setup", "--runtime", "runc")
    machine.program("criu", "echo Version: 3.17.1")
    found = machine.finding("runc", "--runtime", "runc", expect=5)
    demand(f"{machine.bin}/criu is CRIU 3.17.1, and 4.0 is needed" in found["found"] and found["fix"], f"{found}")
    machine.program("criu", "echo Version: 4.2")
    demand(machine.finding("runc", "--runtime", "runc")["level"] == "ok", "CRIU 4.2 is not enough")
    info = {"host": {"ociRuntime": {"name": "crun", "version": "crun version 1.8.1\n+SYSTEMD"}}}
    machine.program("podman", f"cat <<'END'\n{json.dumps(info)}\nEND")
    found = machine.finding("podman", "--runtime", "podman", expect=5)
    demand("compiled without CRIU" in found["found"] and 'runtime = "runc"' in found["fix"], f"{found}")
    machine.program("podman", "echo oops >&2; exit 3")
    found = machine.finding("podman", "--runtime", "podman", expect=5)
    demand("oops" in found["found"], f"{found}")
    machine("check", "--runtime", "docker", expect=2)
    machine("remove")


def plugin(machine):
    os.unlink(machine.plugins / "stasis_plugin.so")
    refused = machine("setup", expect=5)
    demand("stasis_plugin.so" in refused.err, f"{refused}")
    demand(not machine.config.exists(), "CRIU's configuration names a folder without a plugin")


def run(world):
    machine = Machine(world)
    machine.program("runc", "echo runc version 1.1.5")
    machine.program("criu", "echo Version: 4.2.1")
    set_up_and_remove(machine)
    other_folder(machine)
    specification(machine)
    runtimes(machine)
    plugin(machine)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
