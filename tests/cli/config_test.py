#!/usr/bin/env python3
"""The configuration through real commands: `config show` gives the source of each value, a mistake
stops a command before it does anything, and every setting has its effect."""
import os
import pathlib
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import one_world  # noqa: E402
from world import demand  # noqa: E402


def shown(world, env=None):
    document = world.stasis("config", "show", "--json", env=env).json()
    return {row["key"]: row for row in document["settings"]}, document["files"]


def show(world, file):
    file.write_text("# mine\n[dump]\ncompress = 'zstd'\n\n[helper]\nidle_s = 7\n")
    settings, files = shown(world, {"STASIS_CONFIG": str(file)})
    demand(files == [{"path": str(file), "found": True}], f"files: {files}")
    row = settings["dump.compress"]
    demand((row["value"], row["from"], row["file"], row["line"], row["default"]) ==
           ("zstd", "file", str(file), 3, "none"), f"{row}")
    row = settings["helper.idle_s"]  # the test environment sets the variable
    demand((row["value"], row["from"], row["variable"]) == (0, "environment", "STASIS_HELPER_IDLE_S"), f"{row}")
    row = settings["timeouts.phase_s"]
    demand((row["value"], row["from"], row["file"]) == (0, "default", None), f"{row}")
    text = world.stasis("config", "show", env={"STASIS_CONFIG": str(file)}).out
    for part in (f"{file}:3", "$STASIS_HELPER_IDLE_S", f"read:          {file}", "(host memory)"):
        demand(part in text, f"{part} is not in:\n{text}")
    # Without the variable, the machine's file is read.
    demand(shown(world)[1][0]["path"] == "/etc/stasis/config.toml", "the machine's file is not read")


def mistakes(world, file):
    env = {"STASIS_CONFIG": str(file)}
    file.write_text("[helper]\nidel_s = 7\n")
    for verb in (["ps"], ["run", "--", "touch", "ran"], ["gpu", "ls"], ["image", "ls"], ["config", "show"],
                 ["daemon", "check"]):
        world.stasis(*verb, env=env, expect=2)
        demand(world.last.err.startswith(f"stasis: {file}, line 2: there is no key 'helper.idel_s'.\n"), str(world.last))
        demand("the most similar key is helper.idle_s." in world.last.err, str(world.last))
    demand(not (world.folder / "ran").exists(), "a program was started")
    error = world.stasis("ps", "--json", env=env, expect=2).json()["error"]
    demand(error["exit_code"] == 2, f"{error}")
    file.write_text("[helper]\nidle_s = 7\n")
    file.chmod(0o666)
    world.stasis("ps", env=env, expect=4)
    demand("can be written by others" in world.last.err and f"chmod go-w {file}" in world.last.err, str(world.last))
    file.chmod(0o644)
    world.stasis("ps", env={"STASIS_UNDO_TIMEOUT_S": "0"}, expect=2)
    demand(world.last.err.startswith("stasis: STASIS_UNDO_TIMEOUT_S is '0'; it must be a number of seconds from 1 to"), str(world.last))
    world.stasis("ps", env={"STASIS_CONFIG": "nowhere.toml"}, expect=3)
    world.stasis("version", env={"STASIS_CONFIG": "nowhere.toml"})


def settings(world, file):
    env = {"STASIS_CONFIG": str(file)}

    def configure(text):
        file.write_text(text)

    # Directories that no variable of this test overrides.
    del world.env["STASIS_STATE_DIR"]
    try:
        configure(f"[folders]\nstate = '{world.folder}/other'\nimages = '{world.folder}/pictures'\n")
        world.stasis("run", "--no-agent", "--job", "a", "--", "true", env=env)
        world.stasis("wait", "a", env=env)
        demand((world.folder / "other/data/jobs/a").is_dir(), "folders.state")
        text = world.stasis("image", "ls", env=env).out
        demand(f"no images in {world.folder}/pictures" in text, text)
        demand(stat.S_IMODE(os.stat(world.folder / "pictures").st_mode) == 0o700, "folders.images has another mode")
    finally:
        world.env["STASIS_STATE_DIR"] = str(world.state)

    configure("[run]\nkeep_gpu_files = true\n")
    for config, line in ((env, "STASIS_FORK_KEEPS_GPU_FILES=1"), ({}, "")):
        out = world.stasis("run", "--attach", "--no-agent", "-q", "--", "sh", "-c",
                           "env | grep STASIS_FORK || true", env=config).out.strip()
        demand(out == line, f"the program's environment has {out!r}, not {line!r}")

    configure("[programs]\ncriu = '/nonexistent/criu'\ncuda_library = '/nonexistent/libcuda.so'\n")
    world.env.pop("STASIS_CRIU", None)
    found = {f["id"]: f for f in world.stasis("check", "--json", env=env, expect=5).json()["findings"]}
    demand("/nonexistent/criu" in found["criu"]["found"], f"{found['criu']}")
    demand("/nonexistent/libcuda.so" in found["driver"]["found"], f"{found['driver']}")

    arenas = world.folder / "arenas"
    arenas.mkdir(mode=0o700)
    configure(f"[folders]\narena = '{arenas}'\n")
    places = world.stasis("arena", "ls", "--json", env=env).json()["places"]
    demand([p["path"] for p in places] == [str(arenas)], f"{places}")


def as_another_user(world, file):
    """An unprivileged user has a separate file; settings missing there come from root's file."""
    home = world.folder / "home"
    (home / ".config/stasis").mkdir(parents=True)
    mine = home / ".config/stasis/config.toml"
    mine.write_text("[dump]\ncompress = 'lz4'\n")
    for path in (world.folder, world.folder / "home"):
        path.chmod(0o755)
    os.chown(home, 65534, 65534)
    env = {"PATH": world.env["PATH"], "HOME": str(home)}
    done = subprocess.run([world.bin / "stasis", "config", "show"], env=env, cwd="/", text=True, capture_output=True,
                          timeout=60, check=False, user=65534, group=65534, extra_groups=[])
    demand(done.returncode == 0 and f"{mine}:2" in done.stdout, done.stdout + done.stderr)
    demand("not found:     /etc/stasis/config.toml" in done.stdout, done.stdout)
    mine.chmod(0o600)  # root's and unreadable: must be an error
    done = subprocess.run([world.bin / "stasis", "ps"], env=env, cwd="/", text=True, capture_output=True,
                          timeout=60, check=False, user=65534, group=65534, extra_groups=[])
    demand(done.returncode == 4 and f"{mine}: Permission denied" in done.stderr, done.stdout + done.stderr)


def run(world):
    file = world.folder / "config.toml"
    show(world, file)
    mistakes(world, file)
    settings(world, file)
    if os.geteuid() == 0:
        as_another_user(world, file)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
