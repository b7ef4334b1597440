#!/usr/bin/env python3
"""Images changed by their user with correct checksums, and images of other users."""
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import users  # adds tests/stage to the path
import processes
from users import ALICE, BOB, RESTORER, Program, demand

# A program that has an unlinked file and a named file open, and waits to be killed.
HOLDER = "exec 3<>ghost 4<open.file 5>>held.out; rm ghost; echo READY; exec sleep 1000"


def varint(number, length=0):
    """`length`: padded to that many bytes with bytes that readers ignore."""
    out = []
    while number > 127 or len(out) + 1 < length:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + [number])


def secret_of(world):
    return world.state / "data" / "secret.key"


def forge(world, image, *words):
    subprocess.run([world.build / "tests" / "security_forge", image, *words], check=True)


class Holder:
    """A dump of a user's HOLDER program. The image is changed and made consistent again."""

    def __init__(self, world):
        self.world = world
        for name in ("ghost", "open.file"):
            (world.folder / name).write_text("harmless\n")
            os.chown(world.folder / name, world.uid, world.uid)
        with open(world.folder / "holder.out", "wb") as out:
            os.chown(out.fileno(), world.uid, world.uid)
            child = subprocess.Popen([*world.user_words(), "/bin/sh", "-c", HOLDER], env=world.env,
                                     cwd=world.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                     start_new_session=True)
        processes.wait_until(lambda: (world.folder / "holder.out").read_text() == "READY\n" and
                             processes.stat(child.pid)[0] == "sleep", 60, "it does not start")
        world.own(child.pid)
        world.stasis("dump", child.pid, "--name", "good")
        child.wait()
        world.disown(child.pid)
        self.image = world.images / "good"
        self.pristine = world.folder / "pristine"
        shutil.copytree(self.image, self.pristine)

    def change(self, pattern, old, new):
        """Replaces `old` in the one file that contains it; lengths stay the same."""
        demand(len(old) == len(new), f"{old} and {new} are of different lengths")
        found = [p for p in (self.image / "cpu").glob(pattern) if old in p.read_bytes()]
        demand(len(found) == 1, f"{old} is in {found}")
        found[0].write_bytes(found[0].read_bytes().replace(old, new))
        self.seal()

    def seal(self, *words):
        """Makes the image consistent again. Its user can do this, because the user has the secret of origin MACs."""
        forge(self.world, self.image, "--key", secret_of(self.world), *words)
        self.world.stasis("image", "verify", self.image)

    def put_right(self):
        for path in self.pristine.rglob("*"):
            if path.is_file():
                (self.image / path.relative_to(self.pristine)).write_bytes(path.read_bytes())

    def refused(self, code, *texts):
        before = set(processes.all_pids())
        done = self.world.stasis("restore", self.image, "--job", "back", expect=code)
        for text in texts:
            demand(text in done.err, f"the message lacks '{text}':\n{done}")
        self.world.reap()
        left = [p for p in set(processes.all_pids()) - before if processes.is_alive(p)
                and (processes.stat(p) or ("",))[0] == "sleep"]
        demand(not left, f"the program runs: {left}")

    def restores(self):
        self.world.stasis("restore", self.image, "--job", "back")
        pid = self.world.stasis("ps", "-a", "--json").json()["jobs"][0]["pid"]
        demand(os.stat(f"/proc/{pid}").st_uid == self.world.uid, "whose process it is")
        os.kill(pid, 9)
        self.world.stasis("wait", "back", expect=None)
        self.world.stasis("delete", "back")


def ids(uid):
    """Encodes a thread's eight ids as in an image."""
    return b"".join(bytes([field << 3]) + varint(uid, 2) for field in range(1, 9))


def edited_credentials(new):
    world = new(ALICE, RESTORER)
    holder = Holder(world)
    holder.restores()
    holder.change("core-*.img", ids(ALICE), ids(0))
    holder.refused(4, "runs as user 0, and you are user 4001")
    holder.put_right()
    # Two words each of inheritable, permitted and effective capabilities; CAP_DAC_OVERRIDE is bit
    # 1.
    none = b"".join(bytes([field << 3, 0]) * 2 for field in (9, 10, 11))
    some = b"".join(bytes([field << 3, 2, field << 3, 0]) for field in (9, 10, 11))
    holder.change("core-*.img", none, some)
    holder.refused(4, "has capabilities")
    holder.put_right()
    holder.seal("0")
    holder.refused(4, "the image contains a program of user 0, and you are user 4001")
    holder.put_right()
    holder.restores()


def ghost_file_with_setuid_bit(new):
    """An image claims that an unlinked file is root's and set-id. The restore cannot create it."""
    world = new(ALICE, RESTORER)
    holder = Holder(world)
    old = stat.S_IFREG | stat.S_IMODE(os.stat(world.folder / "open.file").st_mode)
    mode = stat.S_IFREG | 0o4755
    ghost = b"\x08" + varint(ALICE, 2) + b"\x10" + varint(ALICE, 2)
    holder.change("*ghost-file*.img", ghost + b"\x18" + varint(old), b"\x08" + varint(0, 2) + b"\x10" +
                  varint(0, 2) + b"\x18" + varint(mode))
    holder.refused(4)
    left = [p for p in world.folder.rglob("*") if p.is_file() and p.lstat().st_mode & stat.S_ISUID]
    demand(not left, f"set-id files: {left}")


def roots_file_in_a_users_image(new):
    """A path in an image is changed to a file that only root may read: CRIU opens it as the user."""
    world = new(ALICE, RESTORER)
    holder = Holder(world)
    secret = world.folder / "root.only"
    demand(len(str(secret)) == len(str(world.folder / "open.file")), "the paths' lengths")
    secret.write_text("harmless\n")
    secret.chmod(0o600)
    holder.change("files.img", str(world.folder / "open.file").encode(), str(secret).encode())
    holder.refused(4, "root.only")
    os.chown(secret, ALICE, ALICE)
    secret.chmod(0o644)
    holder.restores()


def roots_image_restored_by_a_user(new):
    """Another user cannot read root's image, and a copy given to that user is still not that user's program."""
    root, alice = new(), new(ALICE, RESTORER)
    os.chmod(root.folder, 0o711)
    holder = Holder(root)
    alice.stasis("restore", holder.image, "--job", "x", expect=(3, 4))
    demand("manifest" not in alice.last.err, alice.last)
    copy = alice.folder / "copy"
    shutil.copytree(holder.image, copy)
    for path in [copy, *copy.rglob("*")]:
        os.chown(path, ALICE, ALICE)
    refused = alice.stasis("restore", copy, "--job", "x", expect=4)
    demand("the image contains a program of user 0" in refused.err, refused)
    shutil.rmtree(copy)


def users_image_restored_by_root(new):
    """Root's CRIU would open a user's files; this is rejected even if root made the dump."""
    root, alice = new(), new(ALICE, RESTORER)
    holder = Holder(alice)
    refused = root.stasis("restore", holder.image, "--job", "x", expect=4)
    demand("belongs to another user" in refused.err and "--trust-image" in refused.err, refused)
    # A copy has root's files and Alice's MAC. She can make the manifest claim that it is root's
    # program.
    own = root.folder / "own"
    shutil.copytree(holder.image, own)
    for words in ((), ("--key", secret_of(alice), "0"), ("0",)):
        if words:
            forge(root, own, *words)
        refused = root.stasis("restore", own, "--job", "x", expect=4)
        demand("was not written by this installation" in refused.err and "--trust-image" in refused.err, refused)
    # With root's MAC, as from a dump by root: the manifest's claim about its user is still not
    # trusted.
    other = Holder(root)
    for uid in ("4001", "0"):
        forge(root, own, "--key", secret_of(root), uid)
        refused = root.stasis("restore", own, "--job", "x", expect=4)
        demand("contains a program of user 4001" in refused.err and "--trust-image" in refused.err, refused)
    other.restores()
    root.stasis("restore", own, "--job", "x", "--trust-image")
    pid = root.stasis("ps", "-a", "--json").json()["jobs"][0]["pid"]
    demand(os.stat(f"/proc/{pid}").st_uid == ALICE, "whose process it is")
    os.kill(pid, 9)
    root.stasis("wait", "x", expect=None)
    shutil.rmtree(own)


def image_that_others_may_write(new):
    """Other users can write to one file or directory of root's own image."""
    root = new()
    holder = Holder(root)
    packs = list(holder.image.glob("packs/*.pack"))
    demand(packs, "the image has no pack")
    for path in (holder.image, holder.image / "manifest.pb", holder.image / "cpu", holder.image / "cpu" / "files.img",
                 holder.image / "packs", packs[0]):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | 0o020)
        holder.refused(4, "can be written by users other than its owner", "chmod -R go-w")
        path.chmod(mode)
        os.chown(path, BOB, 0)
        holder.refused(4, "belongs to user 4002")
        os.chown(path, 0, 0)
    holder.restores()


def image_from_elsewhere(new):
    """Root's copy of an image from another installation, for a program that claims to be root's."""
    here, elsewhere = new(), new()
    theirs, ours = Holder(elsewhere), Holder(here)
    copy = here.folder / "copy"

    def take(image, *words):
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run(["cp", "-a", image, copy], check=True)
        if words:
            forge(here, copy, *words)

    def refused(origin, *texts):
        done = here.stasis("restore", copy, "--job", "x", expect=4)
        for text in ("was not written by this installation", "files belong to user 0", "--trust-image", *texts):
            demand(text in done.err, f"the message lacks '{text}':\n{done}")
        said = here.stasis("image", "inspect", copy, "--json").json()["origin"]
        demand(said["by"] == origin, f"inspect says {said}")

    def restores(world, image, *options):
        world.stasis("restore", image, "--job", "x", *options)
        pid = next(job["pid"] for job in world.stasis("ps", "-a", "--json").json()["jobs"] if job["id"] == "x")
        os.kill(pid, 9)
        world.stasis("wait", "x", expect=None)
        world.stasis("delete", "x")

    take(theirs.image)
    refused("other", "another key", "its manifest claims that it was written on ")
    restores(here, copy, "--trust-image")
    take(theirs.image, "--key", secret_of(elsewhere), "0")
    refused("other", "another key")
    # This host's own image with a changed manifest; one without a MAC.
    take(ours.image, "--keep-mac", "1")
    refused("changed", "was changed after it was written here")
    damaged = here.stasis("image", "verify", copy, expect=1)
    demand("manifest.pb was changed" in damaged.out, damaged)
    take(ours.image, "0")
    refused("unknown", "no origin MAC")
    # A copy of an own image is trusted while the secret exists and only its owner can read it.
    take(ours.image)
    restores(here, copy)
    demand("origin     this installation" in here.stasis("image", "inspect", copy).out, here.last)
    secret = secret_of(here)
    secret.rename(secret.with_suffix(".away"))
    refused("other", f"its origin MAC cannot be checked without the key file {secret}, which does not exist", "was deleted")
    demand(not secret.exists(), "a restore has made a secret")
    secret.with_suffix(".away").rename(secret)
    secret.chmod(0o640)
    for words in (("restore", copy, "--job", "x"), ("restore", ours.image, "--job", "x")):
        done = here.stasis(*words, expect=4)
        demand(f"{secret} is accessible to other users" in done.err and "chmod 600" in done.err, done)
    secret.chmod(0o600)
    restores(here, copy)
    # Two installations with the same secret trust each other's images.
    shutil.copy2(secret_of(elsewhere), secret)
    take(theirs.image)
    restores(here, copy)
    shutil.rmtree(copy)


if __name__ == "__main__":
    sys.exit(users.main(edited_credentials, ghost_file_with_setuid_bit, roots_file_in_a_users_image,
                        roots_image_restored_by_a_user, users_image_restored_by_root,
                        image_that_others_may_write, image_from_elsewhere))
