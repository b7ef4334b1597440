"""Tests `stasis bench --remote` with a folder and with the strict fake S3 server: output and
leftovers, but never speed."""

import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "stage"), str(HERE.parent / "objects")]

import one_world  # noqa: E402
import schemas  # noqa: E402
from processes import wait_until  # noqa: E402
from s3_server import BUCKET, Host, Server, add, says  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def expect_clean(host, folder, server):
    """Checks that both repositories are empty again, and that no local image is left."""
    demand(files(folder) == ["repo"], f"left in the folder: {files(folder)}")
    folders = [path for path in folder.rglob("*bench-*")]
    demand(not folders, f"left in the folder: {folders}")
    demand(server.keys() == ["a/prefix/repo"], f"left in the bucket: {server.keys()}")
    store = host.state / "data" / "images"
    demand(not store.is_dir() or not list(store.iterdir()), "a local image is left")


def report(host, where, size, *options):
    found = host("bench", "--remote", where, "--size", size, "--rounds", "2", "--json", *options).json()
    if schemas.is_able():
        schemas.compare("bench-remote", found)
    demand(len(found["rounds"]) == 2, f"{len(found['rounds'])} rounds")
    for name in ("put", "push", "get", "restore"):
        seconds = found[name]["seconds"]
        demand(0 < seconds["min"] <= seconds["median"] <= seconds["max"], f"{name}: {seconds}")
        demand(abs(found[name]["bytes_per_s"] * seconds["median"] / found["size_bytes"] - 1) < 1e-6, f"{name}: {found[name]}")
    ratios = {ratio["name"]: ratio for ratio in found["ratios"]}
    demand(set(ratios) == {"push_over_put", "restore_over_get"}, f"{ratios}")
    expected = found["put"]["seconds"]["median"] / found["push"]["seconds"]["median"]
    demand(abs(ratios["push_over_put"]["value"] - expected) < 1e-6, f"{ratios}")
    demand(ratios["push_over_put"]["bar"] == 0.8 and ratios["restore_over_get"]["bar"] == 0.9, f"{ratios}")
    return found


def reports(world, host, folder):
    found = report(host, "fleet", "72MiB")
    demand(found["objects"] == 2 and found["object_bytes"] == 64 * MIB, f"{found['objects']} of {found['object_bytes']}")
    demand(found["repository"] == {"name": "fleet", "location": BUCKET, "encrypted": True}, f"{found['repository']}")
    found = report(host, folder, "8MiB", "-d", world.folder / "elsewhere")
    demand(found["objects"] == 1 and found["object_bytes"] == 8 * MIB, f"{found['objects']} of {found['object_bytes']}")
    demand(found["store"] == str(world.folder / "elsewhere"), f"{found['store']}")
    text = host("bench", "--remote", "fleet", "--size", "8MiB", "--rounds", "1").out
    for wanted in ("plain PUTs", "push", "plain GETs", "restore", "MB/s", "at least 0.90", "at least 0.80", "encrypted"):
        demand(wanted in text, f"'{wanted}' is missing:\n{text}")


def refusals(world, host):
    def refused(code, words, *texts):
        command = host("bench", *words, expect=code)
        says(command, *texts)
        demand(command.out == "", f"output besides the message:\n{command}")

    refused(2, ["--remote", "fleet", "--svg", "plot.svg"], "--svg")
    refused(2, ["--remote", "fleet", "--size", "4096"], "1MiB")
    refused(1, ["--remote", "fleet", "--size", "512TiB"], "--size")
    refused(2, ["-d", world.folder], "--remote")
    refused(3, ["--remote", "nowhere"], "nowhere")


def interrupted(world, host, server):
    """Ctrl-C while plain objects are transferred, and while packs are."""
    for target in ("/check/", "/packs/"):
        seen = len(server.log())
        command = world.begin("bench", "--remote", "fleet", "--size", "72MiB", "--rounds", "500", env=host.env)

        def begun(target=target, seen=seen):
            return any(target in entry[1] for entry in server.log()[seen:])
        wait_until(begun, 60, f"nothing was sent to {target}")
        command.process.send_signal(signal.SIGINT)
        command.wait()
        demand(command.code == 1 and "cancelled" in command.err, f"{command}")


def failed(host, server):
    """A push that is refused is reported, and nothing is left."""
    server.faults({"kind": "status", "status": 403, "code": "AccessDenied", "method": "PUT", "target": "packs/", "count": 99})
    says(host("bench", "--remote", "fleet", "--size", "8MiB", "--rounds", "1", expect=4), "packs/", "round 1 of 1")
    server.faults()


def run(world):
    server = Server(world, "fake")
    try:
        host = Host(world, "a", server)
        folder = world.folder / "repository"
        folder.mkdir()
        host("key", "create")
        add(host, server, "fleet")
        host("repo", "add", "folder", folder)
        for case in (lambda: reports(world, host, folder), lambda: refusals(world, host),
                     lambda: interrupted(world, host, server), lambda: failed(host, server)):
            case()
            expect_clean(host, folder, server)
    finally:
        server.end()


sys.exit(one_world.main(run))
