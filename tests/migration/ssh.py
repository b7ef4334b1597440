"""OpenSSH between the hosts of a test: one user with one key, and a server on each host.

The server is unpacked by tools/sshd.sh, not installed by a package. Everything that server and client read is below the
test's folder: keys, configuration, and the hosts' own versions of the files in SYSTEM_FILES.
"""

import pathlib
import subprocess

import processes
from processes import wait_until

OWN_SERVER = pathlib.Path(__file__).resolve().parents[2] / ".cache" / "sshd" / "sshd"
SERVER = OWN_SERVER if OWN_SERVER.exists() else pathlib.Path("/usr/sbin/sshd")
BRIDGE = "hosts"
# Both sides notice a lost network after this time.
INTERVAL_S, COUNT = 1, 5
# Users, and rules about who may log in, that the server reads from the machine's files.
SYSTEM_FILES = {
    "/etc/passwd": "root:x:0:0:root:{home}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n",
    "/etc/shadow": "root:*:1::::::\nsshd:!:1::::::\n",
    "/etc/hosts.allow": "",
    "/etc/hosts.deny": "",
}
CLIENT = """\
Host *
  BatchMode yes
  IdentitiesOnly yes
  IdentityFile {folder}/user
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  ServerAliveInterval {interval}
  ServerAliveCountMax {count}
"""
DAEMON = """\
HostKey {folder}/{name}.key
PidFile none
UsePAM no
UseDNS no
PermitUserEnvironment yes
ClientAliveInterval {interval}
ClientAliveCountMax {count}
"""


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)


def public_key(path):
    return path.with_name(path.name + ".pub").read_text()


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


class Network:
    """A bridge in the test's network namespace, to which each host is connected; and the client's files."""

    def __init__(self, folder):
        self.folder = folder / "ssh"
        self.folder.mkdir(mode=0o700)
        self.hosts = 0
        make_key(self.folder / "user")
        make_key(self.folder / "restricted")
        values = {"folder": self.folder, "interval": INTERVAL_S, "count": COUNT}
        (self.folder / "config").write_text(CLIENT.format(**values))
        ip("link", "add", "name", BRIDGE, "type", "bridge")
        ip("link", "set", "dev", BRIDGE, "up")
        self.command = f"ssh -F {self.folder}/config"

    def connect(self, name, init):
        """Connects the host whose first process is `init`; returns its address."""
        self.hosts += 1
        address = f"10.0.0.{self.hosts}"
        ip("link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", init)
        ip("link", "set", "dev", name, "master", BRIDGE, "up")
        for words in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "dev", "eth0", "up")):
            subprocess.run(["nsenter", "-t", str(init), "-n", "--", "ip", *words], check=True)
        with open(self.folder / "config", "a") as config:
            config.write(f"Host {name}\n  HostName {address}\n")
        return address


class Server:
    """The ssh server of a host."""

    def __init__(self, host, network):
        self.host, self.network = host, network
        self.home = host.folder / "home"
        keys = self.home / ".ssh"
        keys.mkdir(parents=True, mode=0o700)
        restricted = f'restrict,command="stasis receive" {public_key(network.folder / "restricted")}'
        (keys / "authorized_keys").write_text(public_key(network.folder / "user") + restricted)

    def mounts(self):
        """Returns sources and targets for host_init.py."""
        system = self.host.folder / "system"
        (system / "run" / "sshd").mkdir(parents=True, mode=0o755)
        mounts = [system / "run", "/run"]
        for path, text in SYSTEM_FILES.items():
            if pathlib.Path(path).exists():
                own = system / pathlib.Path(path).name
                own.write_text(text.format(home=self.home))
                mounts += [own, path]
        return mounts

    def start(self):
        name, folder = self.host.name, self.network.folder
        address = self.network.connect(name, self.host.init)
        make_key(folder / f"{name}.key")
        with open(folder / "known_hosts", "a") as known:
            known.write(f"{address} {public_key(folder / (name + '.key'))}")
        config = folder / f"{name}.sshd_config"
        config.write_text(DAEMON.format(folder=folder, name=name, interval=INTERVAL_S, count=COUNT))
        self.log = folder / f"{name}.log"
        self.process = subprocess.Popen([*self.host.enter, SERVER, "-D", "-f", config, "-E", self.log],
                                        stdin=subprocess.DEVNULL)
        self.host.world.own(self.process.pid)
        wait_until(lambda: "Server listening" in processes.text_of(self.log), 30,
                   lambda: f"no ssh server on {name}: {processes.text_of(self.log)}")

    def set_environment(self, values):
        """Sets the environment of commands that later connections run."""
        (self.home / ".ssh" / "environment").write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def cut(self):
        """Cuts the network silently: packets are lost from now on."""
        ip("link", "set", "dev", self.host.name, "nomaster")

    def mend(self):
        ip("link", "set", "dev", self.host.name, "master", BRIDGE)

    def end(self):
        self.process.wait()
        self.host.world.disown(self.process.pid)
