"""tls_test.py --build DIR [--only CASE]: over TCP the client certificate names the user, and it is
required."""

import os
import select
import socket
import subprocess
import sys
import time

from daemon_fixture import DaemonFixture, demand, main, wait_until

# The limit in src/api/tcp.cc.
YOUNG_OF_ADDRESS = 32


class Authority:
    """A temporary certificate authority."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.key, self.cert = folder / f"{name}.key", folder / f"{name}.crt"
        self._openssl("req", "-x509", *self._new(self.key), "-subj", f"/CN={name}", "-days", "1", "-out", self.cert)

    @staticmethod
    def _openssl(*words):
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, check=False)
        demand(done.returncode == 0, lambda: done.stderr.decode())

    @staticmethod
    def _new(key):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]

    def sign(self, subject, file):
        """Creates key and certificate for the names in `subject`, for 127.0.0.1."""
        key, request, cert = (self.folder / f"{file}.{end}" for end in ("key", "csr", "crt"))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl("req", *self._new(key), "-subj", subject, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days",
                      "1", "-extfile", extensions, "-out", cert)
        os.chmod(key, 0o600)
        return key, cert


def settings(authority, key, cert):
    return {"STASIS_LISTEN": "127.0.0.1:0", "STASIS_TLS_CERT": str(cert), "STASIS_TLS_KEY": str(key),
            "STASIS_TLS_CLIENT_CA": str(authority.cert)}


def ask(fixture, address, authority, key=None, cert=None):
    """Returns the status' name and text, or "OK" and the jobs of the user named by the certificate.
    """
    import grpc
    messages, stubs = fixture.stubs()
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), key and key.read_bytes(),
                                               cert and cert.read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        try:
            jobs = stubs.StasisStub(channel).ListJobs(messages.ListJobsRequest(), timeout=60).jobs
            return "OK", [job.id for job in jobs]
        except grpc.RpcError as error:
            return error.code().name, error.details()


def admitted_clients(fixture: DaemonFixture):
    world = fixture.world
    ours, theirs = Authority(world.folder, "ours"), Authority(world.folder, "theirs")
    fixture.start(settings(ours, *ours.sign("/CN=localhost", "daemon")))
    address = fixture.status()["listen"]
    demand(address.startswith("127.0.0.1:") and not address.endswith(":0"), f"it listens at {address}")
    job = fixture.counter()
    demand(ask(fixture, address, ours, *ours.sign("/CN=root", "root")) == ("OK", ["job"]), "root is rejected")
    for name, words in (("/CN=nobody-at-all", "not a user of this machine"), ("/O=stasis", "no common name"),
                        ("/CN=nobody-at-all/CN=root", "not a user of this machine"), ("/CN=", "no common name")):
        status, said = ask(fixture, address, ours, *ours.sign(name, "other"))
        demand(status == "PERMISSION_DENIED" and words in said, f"{name}: {status} {said}")
    demand(ask(fixture, address, ours)[0] == "UNAVAILABLE", "no certificate is requested")
    demand(ask(fixture, address, ours, *theirs.sign("/CN=root", "forged"))[0] == "UNAVAILABLE",
           "a certificate of any authority is accepted")
    demand(ask(fixture, address, theirs, *ours.sign("/CN=root", "root"))[0] == "UNAVAILABLE",
           "the client accepts any daemon's certificate")
    fixture.end(job)


def without_a_certificate(fixture: DaemonFixture):
    """Connections without a certificate are limited in number and time, and do not block other
    addresses."""
    world = fixture.world
    ours = Authority(world.folder, "ours")
    fixture.start(settings(ours, *ours.sign("/CN=localhost", "daemon")))
    address = fixture.status()["listen"]
    key, cert = ours.sign("/CN=root", "root")
    there = ("127.0.0.1", int(address.rpartition(":")[2]))

    def has_ended(peer):
        try:
            return bool(select.select([peer], [], [], 0)[0]) and not peer.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def ended(peers):
        return sum(has_ended(peer) for peer in peers)

    began = time.monotonic()
    peers = [socket.create_connection(there, 10) for _ in range(YOUNG_OF_ADDRESS + 8)]
    elsewhere = socket.create_connection(there, 10, source_address=("127.0.0.2", 0))
    wait_until(lambda: ended(peers) >= 8, 60, lambda: f"{ended(peers)} are closed")
    demand(ended(peers) == 8 and ended([elsewhere]) == 0, "others are closed too")
    # Half a handshake.
    elsewhere.sendall(b"\x16\x03\x01\x02\x00")
    demand(ask(fixture, address, ours, key, cert)[0] == "UNAVAILABLE", "that address has not reached its limit")
    world.stasis("ps")
    still = [*peers, elsewhere]
    wait_until(lambda: ended(still) == len(still), 60, lambda: f"{len(still) - ended(still)} stay")
    demand(time.monotonic() - began > 5, "a client has no time to send a certificate")
    demand(ask(fixture, address, ours, key, cert) == ("OK", []), "valid clients are rejected")
    log = (world.state / "run" / "stasisd.log").read_text()
    demand(log.count("connections over TCP were closed") in (1, 2), f"it is not said once:\n{log}")


def folders_of_a_remote_client(fixture: DaemonFixture):
    """A remote client cannot name directories of this machine."""
    import grpc
    world = fixture.world
    ours = Authority(world.folder, "ours")
    fixture.start(settings(ours, *ours.sign("/CN=localhost", "daemon")))
    messages, stubs = fixture.stubs()
    elsewhere = world.folder / "elsewhere"
    context = messages.CallContext(folders={"run": f"{elsewhere}/run", "data": f"{elsewhere}/data"})
    key, cert = ours.sign("/CN=root", "root")
    credentials = grpc.ssl_channel_credentials(ours.cert.read_bytes(), key.read_bytes(), cert.read_bytes())
    with grpc.secure_channel(fixture.status()["listen"], credentials) as channel:
        stubs.StasisStub(channel).ListJobs(messages.ListJobsRequest(), timeout=60,
                                           metadata=[("stasis-context-bin", context.SerializeToString())])
    demand(not elsewhere.exists(), "it has made that folder")


def refused(fixture: DaemonFixture):
    """A daemon without encryption or client authentication does not start."""
    world = fixture.world
    ours = Authority(world.folder, "ours")
    right = settings(ours, *ours.sign("/CN=localhost", "daemon"))
    cases = [({"STASIS_TLS_CLIENT_CA": ""}, "daemon.tls_client_ca is not"), ({"STASIS_TLS_KEY": ""}, "daemon.tls_key is not"),
             ({"STASIS_TLS_CERT": str(world.folder / "none")}, "No such file"), ({"STASIS_TLS_CERT": "/dev/null"}, "not a PEM file"),
             ({"STASIS_LISTEN": "nowhere.invalid:1"}, "cannot listen at"), ({"STASIS_LISTEN": "127.0.0.1"}, "HOST:PORT")]
    for wrong, words in cases:
        world.stasis("daemon", "start", env={**right, **wrong}, expect=(1, 2, 3))
        demand(words in world.last.err, f"{wrong}: the message lacks '{words}':\n{world.last}")
    os.chmod(right["STASIS_TLS_KEY"], 0o640)
    world.stasis("daemon", "start", env=right, expect=4)
    demand("can be read by others (mode 640)" in world.last.err and "chmod 600" in world.last.err, f"{world.last}")
    world.await_daemons_end()


if __name__ == "__main__":
    sys.exit(main([admitted_clients, without_a_certificate, folders_of_a_remote_client, refused]))
