"""S3 servers for tests, and hosts that use them."""

import datetime
import hashlib
import hmac
import http.client
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
from world import demand  # noqa: E402

BUCKET = "s3://bucket/a/prefix"


class Server:
    """An S3 server with the bucket `bucket`."""

    REGIONS = {"fake": "test-1", "radosgw": "default", "swift": "us-east-1"}
    KEYS = {"fake": "AKIDTEST", "radosgw": "AKIDTEST", "swift": "test:tester"}

    def __init__(self, world, kind, *options):
        """`options` are further arguments of the script that starts the server."""
        self.kind = kind
        self.folder = world.folder / "server"
        self.folder.mkdir()
        words = {"fake": [sys.executable, HERE / "fake_s3.py"],
                 "radosgw": ["/bin/bash", HERE / "radosgw.sh", self.folder],
                 "swift": ["/bin/sh", HERE / "swift.sh", self.folder]}[kind]
        self.process = subprocess.Popen([*words, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        world.own(self.process.pid)
        self.world = world
        port = self.process.stdout.readline().strip()
        demand(port.isdigit(), f"the server did not start: {port}")
        self.url = f"http://127.0.0.1:{port}"
        self.region, self.key = self.REGIONS[kind], self.KEYS[kind]
        self.env = {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": "secret"}
        if kind != "fake":
            self.request("PUT", "/bucket")

    def request(self, method, path, query=""):
        """Sends one request, signed as AWS documents it. Returns the body of the answer."""
        time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{time[:8]}/{self.region}/s3/aws4_request"
        headers = {"host": self.url.removeprefix("http://"), "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
                   "x-amz-date": time}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
        key = b"AWS4secret"
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, "
                                    f"Signature={signature}")
        # urllib would add headers that the strict fake server refuses.
        connection = http.client.HTTPConnection(headers.pop("host"), timeout=60)
        connection.putrequest(method, path + (f"?{query}" if query else ""), skip_accept_encoding=True)
        for header in headers.items():
            connection.putheader(*header)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        demand(answer.status < 300, lambda: f"{method} {path}: {answer.status} {body!r}")
        return body

    def keys(self):
        """Returns the keys of all objects, up to 1000."""
        text = self.request("GET", "/bucket", "list-type=2").decode()
        demand("<IsTruncated>true" not in text, "there are more objects than one list has")
        return re.findall(r"<Key>([^<]*)</Key>", text)

    def faults(self, *faults):
        request = urllib.request.Request(self.url + "/_faults", json.dumps(faults).encode(), method="PUT")
        urllib.request.urlopen(request).read()

    def log(self):
        return json.loads(urllib.request.urlopen(self.url + "/_log").read())

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.world.disown(self.process.pid)


class Host:
    """Commands with a state folder of their own."""

    def __init__(self, world, name, server):
        self.world = world
        self.state = world.folder / name
        self.env = {"STASIS_STATE_DIR": str(self.state), **server.env}

    def __call__(self, *words, env=None, **more):
        return self.world.stasis(*words, env={**self.env, **(env or {})}, **more)

    def image(self, name):
        return self.state / "data" / "images" / name


def says(command, *texts):
    for text in texts:
        demand(text in command.err, f"the message lacks '{text}':\n{command}")


def add(host, server, name, *options, location=BUCKET, expect=0, env=None):
    return host("repo", "add", name, location, "--endpoint", server.url, "--region", server.region, *options,
                expect=expect, env=env)
