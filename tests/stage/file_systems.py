"""A file system on a disk: the folders of tests are in memory (isolate.py)."""

import contextlib
import pathlib
import subprocess
import tempfile

import isolate


@contextlib.contextmanager
def file_system(world, folder, size_bytes, on_disk=False):
    """Mounts an empty ext4 at `folder`. Its blocks are in memory, or with `on_disk` in a file without a name beside the
    build, so that no control group is charged for what was written."""
    with tempfile.TemporaryDirectory(prefix="disk-", dir=world.build if on_disk else world.folder) as place:
        disk = pathlib.Path(place, "disk")
        with open(disk, "wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
        folder.mkdir()
        subprocess.run(["mount", "-o", "loop", disk, folder], check=True)
    (folder / "lost+found").rmdir()
    world._mounts.append(str(folder))
    try:
        yield folder
    finally:
        isolate.unmount(str(folder))
        world._mounts.remove(str(folder))
        folder.rmdir()
