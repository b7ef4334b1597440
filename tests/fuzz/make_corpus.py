#!/usr/bin/env python3
"""Creates the fuzzers' seed inputs in tests/fuzz/corpus: the golden images, and one real message or
file of each kind. Inputs that once exposed a bug are stored beside them under descriptive names;
this script does not touch them."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "image" / "golden"


def put(fuzzer, name, data):
    folder = HERE / "corpus" / fuzzer
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def take_varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def with_two_gpus(file):
    """Returns the manifest with each GPU listed twice, and its ranges on the second. An index of 0
    is not encoded at all, so it could not be mutated."""
    body, out, at = file[32:-16 - 48], b"", 0
    while at < len(body):
        begin = at
        tag, at = take_varint(body, at)
        length, at = take_varint(body, at)
        record = b"" if tag & 7 == 0 else body[at:at + length]
        at += len(record)
        if tag >> 3 == 14:  # a range
            record += bytes([1 << 3, 1])
            out += varint(tag) + varint(len(record)) + record
        else:
            out += body[begin:at] * (2 if tag >> 3 == 7 else 1)
    return file[:32] + out + file[-16 - 48:]


def manifests():
    put("manifest", "two-gpus", with_two_gpus((GOLDEN / "v1" / "manifest.pb").read_bytes()))
    for image in sorted(GOLDEN.iterdir()):
        put("manifest", image.name, (image / "manifest.pb").read_bytes())
    put("manifest", "empty", bytes(48))


def pack_recipe(*extents, blocks=False):
    recipe = struct.pack("<BBBQQQB", 1 if blocks else 0, 0, 0, 0, 0, 0, 0)
    for codec, units, logical, stored in extents:
        # Compute the logical bytes as pack_fuzz.cc does.
        number = logical - 1 if blocks else -logical % 4096
        recipe += struct.pack("<BBBIQQH", codec, 0, units, number, 0, 0, len(stored)) + stored
    return recipe


def packs():
    put("pack", "no-units", pack_recipe())
    kinds = {}
    for path in sorted(GOLDEN.glob("*/packs/*.pack")):
        data = path.read_bytes()
        unit_bytes, index, extents = struct.unpack_from("<QQQ", data, len(data) - 128 + 40)
        for i in range(extents):
            offset, stored, logical, units, codec = struct.unpack_from("<QQQII", data, index + 48 * i)
            extent = data[offset:offset + stored]
            if codec != 0 and extent.strip(b"\0"):
                kinds.setdefault((unit_bytes, codec), (codec, units, logical, extent))
    for (unit_bytes, codec), extent in kinds.items():
        blocks = unit_bytes != 4096
        put("pack", f"{'blocks' if blocks else 'pages'}-codec-{codec}", pack_recipe(extent, blocks=blocks))
    for blocks, name in ((False, "pages"), (True, "blocks")):
        mine = [extent for (unit_bytes, _), extent in kinds.items() if (unit_bytes != 4096) == blocks]
        put("pack", f"{name}-all-codecs", pack_recipe((0, 1, 4096, b"a unit of this"), *mine,
                                                      (0, 1, 100, b"and a short one"), blocks=blocks))
    put("pack", "several-pages", pack_recipe((0, 3, 3 * 4096, b"pages"), (0, 2, 4096 + 7, b"more")))


RANGES = struct.Struct("<IIII")
RANGE = struct.Struct("<QQ16sIIQQ")


def said(kind, body, fds=0):
    """Encodes one packet of a script: packet_fuzz.h."""
    packet = struct.pack("<IHHII", 0x53415453, 1, kind, 16 + len(body), 0) + body
    return struct.pack("<HBB", len(packet), fds, 0) + packet


def ranges(first, count, total):
    one = [RANGE.pack(0x7F0000000000 + (i << 21), 2 << 20, b"GPU-0123456789ab", 0, 3, 1, 2 << 20)
           for i in range(first, first + count)]
    return RANGES.pack(first, count, total, 0) + b"".join(one)


def wire():
    def reply(outcome, text=b""):
        return said(64, struct.pack("<IiII", outcome, 0, 1, 0) + text.ljust(240, b"\0"))

    def wants(at_gate, number, size):
        return said(69, struct.pack("<IIQQQII16s", at_gate, 1, 7, number, size, 0, 0, b"GPU-0123456789ab"))

    hello = struct.pack("<iI20sIIIQQIIIIQ", 4711, 0, b"b" * 20, 0, 1, 2, 4 << 20, 0, 0, 2, 0, 0, 0)
    hello += bytes(7 * 8)  # memory kept by the driver
    hello += struct.pack("<16sQQQQQ", b"GPU-0123456789ab", 2, 4 << 20, 4 << 20, 1, 0).ljust(32 * 56, b"\0")
    hello = said(65, hello + bytes(192))
    requests = {
        "hello": said(1, b""), "status": said(2, b""), "close": said(3, struct.pack("<II", 1000, 1)),
        "export": said(4, b""), "release": said(5, struct.pack("<II", 1, 0)),
        "map": said(6, ranges(0, 2, 2), 2), "open": said(7, b""), "commit": said(8, b""),
        "describe": said(9, b""), "watch": said(14, struct.pack("<II", 65000, 0)), "leave": said(17, b""), "ask-use": said(15, b""),
        "room": said(16, struct.pack("<QII", 5, 1, 0)),
    }
    answers = {
        "reply": reply(0), "refused": reply(6, b"this program has something"), "hello-reply": hello,
        "ranges": said(66, ranges(0, 2, 3), 2) + said(66, ranges(2, 1, 3), 1),
        "nothing": said(66, ranges(0, 0, 0)), "description": said(67, ranges(0, 2, 2)),
        "wants": wants(1, 0, 0), "wants-room": wants(0, 5, 3 << 20),
    }
    for name, packet in {**requests, **answers}.items():
        put("packet", name, packet)
    put("packet", "a-suspend", b"".join(requests.values()))
    put("packet", "too-many-descriptors", said(6, ranges(0, 2, 2), 250))
    for what, name in enumerate(["hello-reply", "ranges", "description", "reply", "reply", "refused",
                                 "reply", "reply"]):
        put("client", f"ask-{what}", bytes([what]) + answers[name])
    put("client", "greeting", bytes([8 + 3]) + hello + answers["reply"])
    put("client", "nothing", b"\x01" + answers["nothing"])
    put("client", "ranges-for-a-description", b"\x02" + answers["ranges"])
    put("client", "watch", b"\x13" + answers["wants"] + answers["wants-room"] + answers["wants"])
    put("client", "watch-busy", b"\x10" + reply(3, b"another watcher is connected"))
    put("client", "busy", b"\x08" + reply(3, b"another client is connected"))


def arena_records():
    def record(places, flags):
        text = b"STASISAR" + struct.pack("<IIiIQQ16s", 1, flags, 4711, 1000, 123456, 1 << 20, b"c" * 16)
        text += b"c4b3d1d0-0000-4000-8000-0123456789ab".ljust(40, b"\0")
        text += b"GPU-01234567-89ab-cdef-0123-456789abcdef".ljust(48, b"\0")
        text += struct.pack("<II", len(places), 4026531836 & 0xFFFFFFFF)
        for place in places:
            text += struct.pack("<QQQQ", *place)
        return text + bytes(16)

    put("arena_record", "empty", record([], 0))
    put("arena_record", "two", record([(0x7F0000000000, 8192, 0, 8192), (0x7F0000200000, 8192, 8192, 0)], 3))


def mover_packets():
    for op in range(1, 19):
        batch = op in (7, 10, 13)
        request = struct.pack("<IIQIIQQII", 0x56444D53, 4, 7, op, 0, 1 << 20, 0, 2 if batch else 0, 0)
        request += bytes(48) + struct.pack("<QQQ", 8192, 0, 8192) * (2 if batch else 0)
        fds = 1 if op in (2, 18) else 2 if op == 7 else 0
        put("mover_protocol", f"request-{op}", bytes([fds, 0]) + request)
    for code in (0, 5):
        reply = struct.pack("<IIQIIIIq", 0x56444D53, 4, 7, 8, 0, code, 3 if code else 0, 2 if code else 0)
        put("mover_protocol", f"reply-{code}", bytes([0, 0]) + reply + b"what happened".ljust(320, b"\0"))


def job_records():
    processes = {"version": 1, "shim": {"pid": 7, "start_time": 8}, "root": {"pid": 9, "start_time": 10},
                 "boot_id": "c4b3", "log": {"device": 1, "inode": 2}}
    put("record", "processes", json.dumps(processes).encode())
    ending = {"version": 1, "root": {"pid": 9, "start_time": 10}, "state": "exited", "code": 3,
              "signal": 0, "time_ms": 1700000000001}
    put("record", "ending", json.dumps(ending).encode())
    put("record", "dumped", b"1 8 22\n/images/ a b\n")


def http_requests():
    for name, line in (("metrics", b"GET /metrics HTTP/1.1"), ("query", b"GET /metrics?name[]=x HTTP/1.0"),
                       ("elsewhere", b"GET / HTTP/1.1"), ("post", b"POST /metrics HTTP/1.1"), ("nonsense", b"GET")):
        put("http_request", name, line + b"\r\nHost: localhost:9464\r\nAccept: text/plain\r\n\r\n")
    put("http_request", "newlines", b"GET /metrics HTTP/1.0\n\n")
    put("http_request", "half", b"GET /metrics HTTP/1.1\r\nHost:")


def journals():
    who = lambda pid: {"pid": pid, "start_time": 2 * pid}
    header = {"version": 1, "verb": "dump", "target": "llama", "boot_id": "c4b3", "pid_namespace": 0,
              "owner": who(2000), "members": [who(3000), who(3001)],
              "device_processes": [{**who(3000), "initial": 1, "gpus": ["GPU-1"], "device_bytes": 77,
                                    "map": [["GPU-1", "GPU-2"]]}],
              "image": "/images/a", "restored_shim": who(0), "restored_root": who(0), "job": "llama",
              "leave_running": False}
    lines = [header, {"phase": "gpu-lock", "at": "begin"}, {"phase": "gpu-lock", "at": "end"},
             {"note": {"restored_shim": who(5), "restored_root": who(6)}}, {"committed": True}]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    put("journal", "whole", text)
    put("journal", "torn", text[:-5])


def threads():
    """Encodes a thread's credentials in CRIU's format."""
    def field(number, value):
        return varint(number << 3) + varint(value)

    def thread(uid, capability):
        creds = b"".join(field(n, uid) for n in range(1, 9))
        creds += b"".join(field(n, capability) + field(n, 0) for n in (9, 10, 11)) + field(12, 0xFEFFFFFF)
        creds += field(14, uid) + field(19, 0)
        core = varint(10 << 3 | 2) + varint(len(creds)) + creds
        entry = field(1, 1) + varint(5 << 3 | 2) + varint(len(core)) + core
        return struct.pack("<3I", 0x54564319, 0x55053847, len(entry)) + entry
    put("credentials", "ours", thread(4001, 0))
    put("credentials", "of-another", thread(4002, 0))
    put("credentials", "with-a-capability", thread(4001, 2))


def repository_records():
    """The fuzzer corrects envelope and checksum, so both are zero here, except for the kind."""
    def record(kind, body):
        return bytes(12) + struct.pack("<I", kind) + bytes(32) + body + bytes(16)

    push, gc, key = b"P" * 12, b"G" * 12, b"K" * 16
    table = struct.pack("<3I", 2, 1, 2) + key + struct.pack("<8I", 3, 4096, 4096, 0, 1, 2 << 20, 1000, 2)
    table += struct.pack("<2I", 3, 1) + key + struct.pack("<4I", 1, 100, 100, 0)
    function = b"poly127-4k-aes256"
    names = struct.pack("<I", len(function)) + function + key + table + b"N" * 16 * 5
    pushes, packs = struct.pack("<I", 1) + push, struct.pack("<I", 1) + push + struct.pack("<I", 7)
    time = struct.pack("<q", 1_700_000_000_000_000_000)
    body = b"\x0a\x10" + b"I" * 16 + b"\x50\x80\x20"  # image_id, chunk_bytes
    image = time + struct.pack("<2I", 0, 0) + struct.pack("<I", len(body)) + body
    for name, kind, content in (("repo", 0, struct.pack("<2I", 1, 4) + b"text"), ("place", 1, table),
                                ("names", 2, names), ("pending", 3, time + pushes + packs), ("image", 4, image),
                                ("condemned", 5, time + packs + struct.pack("<I", 1) + gc)):
        put("repository_record", name, record(kind, content))
def sealed():
    """A key, and an object that is encrypted with it (the golden values of src/repository/seal_test.cc)."""
    key, key_id = bytes(range(32)).hex(), "4a842777d7624912ee61fb2538ce6e50"
    put("seal", "key", f"# comment\nstasis-key-1 {key} {key_id}\n".encode())
    put("seal", "object", bytes.fromhex(
        "7374736c01000000" + key_id + "404142434445464748494a4b4c4d4e4f" "2b00000000000000"
        "8f943045690d6d93c048526eace54dea1c15ab12cf04648fb95d58f49c289f9cd7dc79538d010a8f8ad11d981c1f7b55228c40509c5f21e8"
        "91c4be"))


def s3_answers():
    def listed(*entries, truncated="false"):
        contents = "".join(f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                           f"<ETag>&quot;0&quot;</ETag><Size>{size}</Size></Contents>" for key, size in entries)
        return ('<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>b</Name><EncodingType>url</EncodingType><IsTruncated>{truncated}</IsTruncated>{contents}"
                "</ListBucketResult>").encode()

    put("s3_answer", "list", listed(("p/b", 1), ("p/c/d", 20)))
    put("s3_answer", "list-truncated", listed(("p/b%2Bc", 1), ("p/d+e", 0), truncated="true"))
    put("s3_answer", "list-out-of-order", listed(("p/c", 1), ("p/b", 1)))
    put("s3_answer", "list-empty", listed())
    for code, more in (("NoSuchKey", "<Key>k</Key>"), ("PermanentRedirect", "<Region>eu-west-1</Region>"), ("SlowDown", ""),
                       ("RequestTimeTooSkewed", "<ServerTime>2026-01-01T00:00:00Z</ServerTime>")):
        put("s3_answer", f"error-{code}", f"<Error><Code>{code}</Code><Message>m</Message>{more}</Error>".encode())
    put("s3_answer", "date", b"Fri, 24 May 2013 00:00:00 GMT")
    put("s3_answer", "range", struct.pack("<2Q", 5, 10) + b"bytes 5-9/100")


def s3_credentials():
    keys = {"AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2100-01-01T00:00:00Z"}
    put("s3_credentials", "json", json.dumps({"Code": "Success", **keys}).encode())
    put("s3_credentials", "json-of-a-process", json.dumps({"Version": 1, "SessionToken": "t", **keys}).encode())
    put("s3_credentials", "json-refused", b'{"Code": "AssumeRoleUnauthorizedAccess"}')
    put("s3_credentials", "sts", (
        '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>id</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        "<SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00.5Z</Expiration></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>").encode())
    put("s3_credentials", "sts-error",
        b"<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>old</Message></Error></ErrorResponse>")
    put("s3_credentials", "file", b"# comment\n[default]\naws_access_key_id = one\naws_secret_access_key=a=b\r\n"
        b"[profile other]\ns3 =\n  nested = 1\ncredential_process = echo x\n[ open\n=\n")


def locations():
    for name, text in (("bucket", "s3://bucket"), ("prefix", "s3://bucket/a/b/"), ("folder", "/mnt/store/"), ("root", "//"),
                       ("empty-component", "s3://bucket//a"), ("parent", "s3://bucket/../a"), ("key", "a-b/c.d/_e"),
                       ("dots", ".../..a/a.."), ("relative", "store")):
        put("location", name, text.encode())


def store_messages():
    """Requests and replies of src/migration, in the form from which store_server_fuzz.cc makes frames."""
    def text(field, value):
        return varint(field << 3 | 2) + varint(len(value)) + value

    def number(field, value):
        return varint(field << 3) + varint(value)

    def frame(kind, header, payload=b""):
        return struct.pack("<BHH", kind, len(header), len(payload)) + header + payload

    key = text(1, b"a/key")
    put("store_server", "requests", frame(1, key, b"an object") + frame(2, key + number(2, 3) + number(3, 6)) +
        frame(3, key + number(3, 100)) + frame(4, text(1, b"a/") + text(4, b"a/a") + number(5, 2)) + frame(5, key) +
        frame(6, number(6, 3600)))
    put("store_server", "bad-requests", frame(1, text(1, b"../key"), b"an object") + frame(2, key, b"payload") +
        frame(4, number(5, 1001)) + frame(9, b"other", b"message"))
    error = number(1, 5) + number(2, 1) + number(3, 2) + text(4, b"there is no object") + text(5, b"hint") + number(6, 1)
    objects = b"".join(text(2, text(1, name) + number(2, 7)) for name in (b"a/c", b"a/d"))
    put("store_server", "replies", frame(7, b"", b"12345") + frame(7, b"", b"123456") + frame(7, objects + number(3, 1)) +
        frame(7, number(4, 9)) + frame(7, b""))
    put("store_server", "errors", frame(7, text(1, error)) * 5)
    put("store_server", "raw", struct.pack("<HHIQ", 1, 0, len(key), 4) + key + b"data")
    put("store_server", "raw-too-long", struct.pack("<HHIQ", 1, 0, len(key), (1 << 64) - 1) + key + b"data")


if __name__ == "__main__":
    store_messages()
    s3_answers()
    s3_credentials()
    locations()
    threads()
    sealed()
    manifests()
    packs()
    wire()
    arena_records()
    mover_packets()
    http_requests()
    job_records()
    journals()
    repository_records()
