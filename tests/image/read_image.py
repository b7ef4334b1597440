#!/usr/bin/env python3
"""A second reader of Stasis images, written from docs/format/image.md alone.

It shares no code with the product and needs nothing but Python, so that it tells whether the format
page is true, and so that an image can be looked at where Stasis is not installed.

    read_image.py IMAGE            what the image holds
    read_image.py --verify IMAGE   the same, after every byte was compared; exit code 1 if one differs
    read_image.py --cpu FOLDER IMAGE   makes CRIU's files in FOLDER, those too that the image holds as pages

Extents in zstd are decompressed by Python from 3.14 on, or by the `zstd` command. Without either
they are compared as they are stored, and it says how many.
"""

import hashlib
import hmac
import os
import stat
import struct
import subprocess
import sys

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1


FOLDERS = ("cpu", "log", "packs", "agent")
PAGE, BLOCK = 4096, 2 << 20
MOST_BYTES = 1 << 50  # per file or pack
MOST_UNITS = 1 << 24  # per pack
MOST_UNITS_USED = 1 << 25  # per image, counting each use
MOST_PACKS, MOST_PAGE_FILES = 16384, 65536
FEATURE_AGENT = 1  # files in agent/
FEATURE_ORIGIN = 2  # a MAC after the body
ORIGIN_BYTES = 48  # the id of its key, and the MAC
without_zstd = 0  # extents that were compared only in their stored form


class BadImage(Exception):
    pass


# --- XXH3-128, seed 0 -------------------------------------------------------------------------------

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def padded(size):
    """Rounds up to a multiple of 4096."""
    return -(-size // 4096) * 4096


def u32(data, at=0):
    return int.from_bytes(data[at:at + 4], "little")


def u64(data, at=0):
    return int.from_bytes(data[at:at + 8], "little")


def swap(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def avalanche3(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & M64
    return h ^ h >> 32


def avalanche64(h):
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ h >> 32


def fold(a, b):
    product = a * b
    return (product & M64) ^ (product >> 64)


def mix16(data, at, secret_at):
    return fold(u64(data, at) ^ u64(SECRET, secret_at), u64(data, at + 8) ^ u64(SECRET, secret_at + 8))


def mix32(low, high, data, first, second, secret_at):
    low = (low + mix16(data, first, secret_at)) & M64
    low ^= (u64(data, second) + u64(data, second + 8)) & M64
    high = (high + mix16(data, second, secret_at + 16)) & M64
    high ^= (u64(data, first) + u64(data, first + 8)) & M64
    return low, high


def xxh3_upto16(data):
    n = len(data)
    if n == 0:
        return (avalanche64(u64(SECRET, 64) ^ u64(SECRET, 72)),
                avalanche64(u64(SECRET, 80) ^ u64(SECRET, 88)))
    if n <= 3:
        low = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        high = swap(low, 4)
        high = (high << 13 | high >> 19) & M32
        return (avalanche64(low ^ u32(SECRET, 0) ^ u32(SECRET, 4)),
                avalanche64(high ^ u32(SECRET, 8) ^ u32(SECRET, 12)))
    if n <= 8:
        keyed = (u32(data) + (u32(data, n - 4) << 32)) ^ u64(SECRET, 16) ^ u64(SECRET, 24)
        product = keyed * ((P64_1 + (n << 2)) & M64)
        low, high = product & M64, product >> 64
        high = (high + (low << 1)) & M64
        low ^= high >> 3
        low ^= low >> 35
        low = low * 0x9FB21C651E98DF25 & M64
        return low ^ low >> 28, avalanche3(high)
    first, last = u64(data), u64(data, n - 8)
    product = (first ^ last ^ u64(SECRET, 32) ^ u64(SECRET, 40)) * P64_1
    low, high = product & M64, product >> 64
    low = (low + ((n - 1) << 54)) & M64
    last ^= u64(SECRET, 48) ^ u64(SECRET, 56)
    high = (high + last + (last & M32) * (P32_2 - 1)) & M64
    low ^= swap(high, 8)
    product = low * P64_2
    low, top = product & M64, product >> 64
    return avalanche3(low), avalanche3((top + high * P64_2) & M64)


def xxh3_upto240(data):
    n = len(data)
    low, high = n * P64_1 & M64, 0
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            low, high = mix32(low, high, data, 16 * i, n - 16 * (i + 1), 32 * i)
    else:
        for i in range(4):
            low, high = mix32(low, high, data, 32 * i, 32 * i + 16, 32 * i)
        low, high = avalanche3(low), avalanche3(high)
        for i in range(4, n // 32):
            low, high = mix32(low, high, data, 32 * i, 32 * i + 16, 3 + 32 * (i - 4))
        low, high = mix32(low, high, data, n - 16, n - 32, 136 - 17 - 16)
    return (avalanche3((low + high) & M64),
            -avalanche3((low * P64_1 + high * P64_4 + n * P64_2) & M64) & M64)


def xxh3_long(data):
    n = len(data)
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    secrets = [struct.unpack_from("<8Q", SECRET, 8 * i) for i in range(16)]

    def accumulate(at, secret):
        for i, value in enumerate(struct.unpack_from("<8Q", data, at)):
            keyed = value ^ secret[i]
            acc[i ^ 1] += value
            acc[i] = (acc[i] + (keyed & M32) * (keyed >> 32)) & M64

    scramble = struct.unpack_from("<8Q", SECRET, 128)
    blocks = (n - 1) // 1024
    for block in range(blocks):
        for stripe in range(16):
            accumulate(1024 * block + 64 * stripe, secrets[stripe])
        for i in range(8):
            a = acc[i] & M64
            acc[i] = (a ^ a >> 47 ^ scramble[i]) * P32_1 & M64
    for stripe in range((n - 1 - 1024 * blocks) // 64):
        accumulate(1024 * blocks + 64 * stripe, secrets[stripe])
    accumulate(n - 64, struct.unpack_from("<8Q", SECRET, 192 - 64 - 7))

    def merge(secret_at, start):
        for i in range(4):
            start += fold(acc[2 * i] & M64 ^ u64(SECRET, secret_at + 16 * i),
                          acc[2 * i + 1] & M64 ^ u64(SECRET, secret_at + 16 * i + 8))
        return avalanche3(start & M64)

    return merge(11, n * P64_1 & M64), merge(192 - 64 - 11, ~(n * P64_2) & M64)


def xxh3_128(data):
    """Returns the canonical 16 bytes: upper half first, big-endian."""
    method = xxh3_upto16 if len(data) <= 16 else xxh3_upto240 if len(data) <= 240 else xxh3_long
    low, high = method(data)
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


# --- unit names: poly127-4k, then AES-256 ------------------------------------------------------------------------

P127 = (1 << 127) - 1


def chacha20(key, nonce, size):
    def rotl(x, n):
        return (x << n | x >> (32 - n)) & M32

    stream = b""
    counter = 0
    while len(stream) < size:
        start = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
        x = start[:]
        for _ in range(10):
            for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                               (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                x[a] = x[a] + x[b] & M32
                x[d] = rotl(x[d] ^ x[a], 16)
                x[c] = x[c] + x[d] & M32
                x[b] = rotl(x[b] ^ x[c], 12)
                x[a] = x[a] + x[b] & M32
                x[d] = rotl(x[d] ^ x[a], 8)
                x[c] = x[c] + x[d] & M32
                x[b] = rotl(x[b] ^ x[c], 7)
        stream += struct.pack("<16I", *(x[i] + start[i] & M32 for i in range(16)))
        counter += 1
    return stream[:size]


def aes_tables():
    """Returns AES's substitution box: the inverse in GF(2^8), and an affine map."""
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p ^= (p << 1 ^ (0x11B if p & 0x80 else 0)) & 0xFFF  # multiplied by 3
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q = (q ^ (0x09 if q & 0x80 else 0)) & 0xFF  # divided by 3
        p &= 0xFF
        rotated = [(q << n | q >> (8 - n)) & 0xFF for n in range(5)]
        box[p] = rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4] ^ 0x63
        if p == 1:
            return box


AES_BOX = aes_tables()


def aes256(key, block):
    """Encrypts one block of 16 bytes (FIPS 197)."""
    def double(x):
        return (x << 1 ^ (0x11B if x & 0x80 else 0)) & 0xFF

    words, constant = [list(key[i:i + 4]) for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = words[-1][:]
        if i % 8 == 0:
            word = [AES_BOX[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = double(constant)
        elif i % 8 == 4:
            word = [AES_BOX[b] for b in word]
        words.append([a ^ b for a, b in zip(words[-8], word)])
    keys = [sum(words[i:i + 4], []) for i in range(0, 60, 4)]
    state = [a ^ b for a, b in zip(block, keys[0])]
    for round_key in keys[1:]:
        state = [AES_BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if round_key is not keys[-1]:
            mixed = []
            for column in range(0, 16, 4):
                a = state[column:column + 4]
                mixed += [double(a[i]) ^ double(a[(i + 1) % 4]) ^ a[(i + 1) % 4] ^ a[(i + 2) % 4] ^ a[(i + 3) % 4]
                          for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, round_key)]
    return bytes(state)


class UnitKey:
    def __init__(self, secret):
        stream = chacha20(secret, b"stasis-block", 514 * 16)
        numbers = [(int.from_bytes(stream[i:i + 16], "little") & P127) % P127
                   for i in range(0, 513 * 16, 16)]
        self.r, self.k = numbers[0], numbers[1:]
        self.id = stream[513 * 16:]
        self.aes_key = mac(secret, b"stasis unit names: AES-256 key")

    def name(self, unit):
        """Returns the name of a unit in images."""
        return aes256(self.aes_key, self.hash(unit))

    def hash(self, block):
        value = len(block)
        for at in range(0, len(block), 4096):
            words = struct.unpack("<512Q", block[at:at + 4096].ljust(4096, b"\0"))
            value = (value * self.r + sum(w * k for w, k in zip(words, self.k))) % P127
        return (value | 1 << 127).to_bytes(16, "little")


# --- the manifest -----------------------------------------------------------------------------------

def varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadImage("the manifest's body is no protobuf message")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Returns all fields of a protobuf message: {number: [value, ...]}; a value is an int or bytes.
    """
    found = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise BadImage("the manifest's body is no protobuf message")
        if at > len(data):
            raise BadImage("the manifest's body is no protobuf message")
        found.setdefault(tag >> 3, []).append(value)
    return found


def one(message, number, default):
    return message.get(number, [default])[-1]


def text(message, number):
    return one(message, number, b"").decode("utf-8", "replace")


def ids(raw):
    return [raw[i:i + 16] for i in range(0, len(raw), 16)]


def open_envelope(data, where):
    if len(data) < 48 or data[:8] != b"\x89STASIS\n":
        raise BadImage(f"{where} is no manifest")
    if xxh3_128(data[:-16]) != data[-16:]:
        raise BadImage(f"{where} is damaged")
    version, header, body, features = struct.unpack_from("<IIQQ", data, 8)
    if version != 1 or features & ~(FEATURE_AGENT | FEATURE_ORIGIN):
        raise BadImage(f"{where} has format {version} with features {features:#x}; this reads 1")
    if header != 32 or body != len(data) - 48 - (ORIGIN_BYTES if features & FEATURE_ORIGIN else 0):
        raise BadImage(f"{where} is damaged: wrong lengths")
    return data[32:32 + body], features


def mac(key, message):
    return hmac.new(key, message, hashlib.sha256).digest()


def origin_key_id(image):
    """Returns the key id in the manifest's origin MAC; None without a MAC."""
    data = read_regular(os.path.join(image, "manifest.pb"))
    _, features = open_envelope(data, image)
    return data[-64:-48] if features & FEATURE_ORIGIN else None


def is_by(image, secret):
    """Returns whether the installation with this secret wrote the image."""
    if origin_key_id(image) != mac(secret, b"stasis image origin: key id")[:16]:
        return False
    data = read_regular(os.path.join(image, "manifest.pb"))
    key = mac(secret, b"stasis image origin: MAC key")
    return hmac.compare_digest(data[-48:-16], mac(key, hashlib.sha256(data[:-64]).digest()))


def read_regular(path, expected_size=None):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadImage(f"{path} is no regular file")
        if expected_size is not None and status.st_size != expected_size:
            raise BadImage(f"{path} has {status.st_size} bytes, recorded are {expected_size}")
        return file.read()


def read_manifest(image):
    path = os.path.join(image, "manifest.pb")
    body, features = open_envelope(read_regular(path), path)
    manifest = fields(body)
    has_agent = any(name.startswith("agent/") for name, _, _ in files_of(manifest))
    if has_agent != bool(features & FEATURE_AGENT):
        raise BadImage(f"{path} has features {features:#x}, and not those of what it lists")
    check_packs_are_needed(manifest)
    return manifest


def check_packs_are_needed(manifest):
    """Checks that the manifest's packs and units are within bounds, and that each pack is used."""
    if len(manifest.get(13, [])) > MOST_PACKS or len(manifest.get(15, [])) > MOST_PAGE_FILES:
        raise BadImage("the manifest lists too many packs, or files of pages")
    packs = list(packs_of(manifest))
    places = set()
    used = 0
    for _, _, _, runs in [*ranges_of(manifest, packs), *page_files_of(manifest, packs)]:
        places.update(place for place, _, _ in runs)
        used += sum(count for place, _, count in runs if place is not None)
    if used > MOST_UNITS_USED or used > 0 and not manifest.get(12):
        raise BadImage(f"{used} units are in packs, which is too many, or nothing says how they are named")
    if needed := len(packs) - len(places - {None}):
        raise BadImage(f"{needed} of {len(packs)} packs are needed by nothing")


def is_plain_name(name):
    """Checks a file name in one of an image's directories."""
    raw = name.encode("utf-8", "surrogateescape")
    return 0 < len(raw) <= 255 and name not in (".", "..") and not any(b < 32 or b in (47, 127) for b in raw)


def files_of(manifest):
    """Yields (path, size, checksums) of every listed file, and checks the rules for paths."""
    for raw in manifest.get(11, []):
        message = fields(raw)
        path = text(message, 1)
        folder, _, name = path.partition("/")
        if folder not in FOLDERS or not is_plain_name(name):
            raise BadImage(f"{path!r} is no path inside an image")
        if folder == "packs":
            raise BadImage(f"{path!r} is a file where only packs are")
        yield path, one(message, 2, 0), ids(one(message, 3, b""))


# --- packs ------------------------------------------------------------------------------------------

def lz4_block(stored, size, where):
    """Decompresses an LZ4 block to exactly `size` bytes."""
    out = bytearray()
    at = 0

    def length(value):
        nonlocal at
        while value >= 15 and (more := stored[at]) >= 0:
            at += 1
            value += more
            if more != 255:
                break
        return value

    try:
        while True:
            token = stored[at]
            at += 1
            literals = length(token >> 4)
            if at + literals > len(stored) or len(out) + literals > size:
                raise IndexError
            out += stored[at:at + literals]
            at += literals
            if at == len(stored):
                break
            offset = stored[at] | stored[at + 1] << 8
            at += 2
            match = length(token & 15) + 4
            if not 0 < offset <= len(out) or len(out) + match > size:
                raise IndexError
            while match > 0:
                piece = out[-offset:][:match]
                out += piece
                match -= len(piece)
    except IndexError:
        raise BadImage(f"{where} is no LZ4 block") from None
    if len(out) != size:
        raise BadImage(f"{where} has {len(out)} bytes, not {size}")
    return bytes(out)


def zstd_frame(stored, size, where):
    """Decompresses with Python (3.14 or later) or the `zstd` command; returns None without either."""
    try:
        from compression import zstd
    except ImportError:
        return zstd_by_command(stored, size, where)
    try:
        out = zstd.decompress(stored)
    except zstd.ZstdError:
        raise BadImage(f"{where} is no zstd frame") from None
    if len(out) != size:
        raise BadImage(f"{where} has {len(out)} bytes, not {size}")
    return out


def zstd_by_command(stored, size, where):
    try:
        child = subprocess.Popen(["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        global without_zstd
        without_zstd += 1
        return None
    out, _ = child.communicate(stored)
    if child.returncode != 0 or len(out) != size:
        raise BadImage(f"{where} is no zstd frame of {size} bytes")
    return out


class Pack:
    """A pack with a valid index and footer. Units are checked when they are read: an unused one may
    be a hole."""

    def __init__(self, data, where):
        self.data, self.where = data, where
        footer = data[-128:]
        if len(data) < 128 or footer[:8] != b"\x89STPACK\n" or xxh3_128(footer[:112]) != footer[112:]:
            raise BadImage(f"{where} has no end of a pack, or a damaged one")
        (version, size, features, self.id, self.unit_bytes, body, extents, units,
         self.index_checksum) = struct.unpack_from("<IIQ16sQQQQ16s", footer, 8)
        if version != 1 or features != 0:
            raise BadImage(f"{where} has pack format {version}; this reads 1")
        index = data[body:-128]
        self.tail = len(index) + 128
        if (not extents <= units <= MOST_UNITS or size != 128 or body % 4096 or self.unit_bytes not in (PAGE, BLOCK)
                or body > len(data) - 128 or len(index) != 48 * extents + 32 * units):
            raise BadImage(f"{where} is damaged: wrong lengths")
        if xxh3_128(index) != self.index_checksum:
            raise BadImage(f"{where} has a damaged index")
        self.units = [(index[at:at + 16], index[at + 16:at + 32]) for at in range(48 * extents, len(index), 32)]
        if any(not any(name) for name, _ in self.units):
            raise BadImage(f"{where} has a unit without a name")
        self.extents = []  # for each unit: the extent, and its index within the extent
        self.read = {}
        end = 0
        for i in range(extents):
            extent = struct.unpack_from("<QQQII16s", index, 48 * i)
            offset, stored, logical, count, codec, checksum = extent
            if codec > 2:
                raise BadImage(f"{where} has an extent with codec {codec}")
            most = count * self.unit_bytes
            good = count > 0 and most - self.unit_bytes < logical <= most
            if codec == 0:
                good = good and stored == logical and not any(checksum)
            else:
                good = good and 0 < stored < logical <= BLOCK
            if not good or offset < end or offset % 4096 or offset + padded(stored) > body:
                raise BadImage(f"{where} has {count} units in {stored} bytes at {offset}")
            end = offset + padded(stored)
            self.extents += [(extent, which) for which in range(count)]
        if len(self.extents) != units:
            raise BadImage(f"{where} has {units} units and {len(self.extents)} in its extents")

    def frame_bytes(self):
        """Returns the size of the file without units."""
        return padded(self.tail)

    def bytes_of(self, number):
        """Returns the logical bytes of a unit."""
        extent, which = self.extents[number]
        return min(self.unit_bytes, extent[2] - which * self.unit_bytes)

    def extent(self, extent):
        """Returns all units of a compressed extent; None if it cannot be decompressed here."""
        offset, stored, logical, _, codec, checksum = extent
        where = f"{self.where}: the extent at {offset}"
        raw = self.data[offset:offset + stored]
        if xxh3_128(raw) != checksum or any(self.data[offset + stored:offset + padded(stored)]):
            raise BadImage(f"{where} is damaged")
        return (None, lz4_block, zstd_frame)[codec](raw, logical, where)

    def unit(self, number):
        """Returns the checked bytes; None for a zstd unit that cannot be decompressed here."""
        extent, which = self.extents[number]
        begin, size = which * self.unit_bytes, self.bytes_of(number)
        if extent[4] == 0:
            data = self.data[extent[0] + begin:][:size]
            if which == extent[3] - 1 and any(self.data[extent[0] + extent[1]:extent[0] + padded(extent[1])]):
                raise BadImage(f"{self.where}: unit {number} has padding that is not zero")
        else:
            if extent not in self.read:
                self.read[extent] = self.extent(extent)
            if self.read[extent] is None:
                return None
            data = self.read[extent][begin:][:size]
        if xxh3_128(data) != self.units[number][1]:
            raise BadImage(f"{self.where}: unit {number} is damaged")
        return data


def varints(values):
    """Returns a repeated number, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = varint(value, at)
            found.append(number)
    return found


def packs_of(manifest):
    """Yields the fields of every listed pack, with `path` and `unit_bytes`."""
    seen = set()
    for raw in manifest.get(13, []):
        message = fields(raw)
        name = one(message, 1, b"")
        if len(name) != 16 or not any(name) or name in seen:
            raise BadImage(f"a pack with the id {name.hex()} is listed")
        seen.add(name)
        size, unit_bytes, units, stored = (one(message, number, 0) for number in (2, 4, 6, 7))
        if size > MOST_BYTES or stored > size or units > MOST_UNITS or unit_bytes not in (PAGE, BLOCK):
            raise BadImage(f"a pack of {size} bytes is listed with {units} units of {unit_bytes} in {stored}")
        message["path"], message["unit_bytes"] = f"packs/{name.hex()}.pack", unit_bytes
        yield message


def runs_of(message, number, what, size, step, unit_bytes, packs):
    """Returns [(index of the pack or None, first unit, units)] of a sequence of `size` bytes in units
    of `step`, in packs with units of `unit_bytes`."""
    runs = fields(one(message, number, b""))
    places, firsts, counts = (varints(runs.get(n, [])) for n in (1, 2, 3))
    if not len(places) == len(firsts) == len(counts) or sum(counts) != -(-size // step):
        raise BadImage(f"{what} has {size} bytes in {sum(counts)} units")
    found = []
    for place, first, count in zip(places, firsts, counts):
        if place == 0:
            good = first == 0
        else:
            good = (place <= len(packs) and packs[place - 1]["unit_bytes"] == unit_bytes
                    and first + count <= MOST_UNITS)
        if count == 0 or not good:
            raise BadImage(f"{what} has {count} units in pack {place} of {len(packs)}")
        found.append((place - 1 if place else None, first, count))
    return found


def ranges_of(manifest, packs):
    """Yields (description, size, block bytes, runs) of every range; `packs` from packs_of."""
    for raw in manifest.get(14, []):
        message = fields(raw)
        address, size, step = one(message, 2, 0), one(message, 3, 0), one(message, 4, 0)
        what = f"range {address:#x}"
        if not 0 < step <= BLOCK or size == 0 or address + size >= 1 << 64 or one(message, 1, 0) >= len(manifest.get(7, [])):
            raise BadImage(f"{what} has {size} bytes in blocks of {step}, or no GPU")
        yield what, size, step, runs_of(message, 6, what, size, step, BLOCK, packs)


def page_files_of(manifest, packs):
    """Yields (path, size, PAGE, runs) of every page file."""
    seen = {path for path, _, _ in files_of(manifest)}
    for raw in manifest.get(15, []):
        message = fields(raw)
        path, size = text(message, 1), one(message, 2, 0)
        folder, _, name = path.partition("/")
        if folder != "cpu" or not is_plain_name(name) or path in seen:
            raise BadImage(f"{path!r} is no file made of pages")
        seen.add(path)
        if not 0 < size <= MOST_BYTES or size % PAGE:
            raise BadImage(f"{path} has {size} bytes")
        yield path, size, PAGE, runs_of(message, 3, path, size, PAGE, PAGE, packs)


def open_pack(image, message):
    pack = Pack(read_regular(os.path.join(image, message["path"]), one(message, 2, 0)), message["path"])
    recorded = (one(message, 1, b""), one(message, 3, b""), message["unit_bytes"])
    if (pack.id, pack.index_checksum, pack.unit_bytes) != recorded:
        raise BadImage(f"{message['path']} is another pack than the one recorded")
    return pack


def make_cpu_files(image, folder):
    """Writes CRIU's files to the folder."""
    manifest = read_manifest(image)
    recorded = list(packs_of(manifest))
    packs = [open_pack(image, message) if message["unit_bytes"] == PAGE else None for message in recorded]
    for path, size, _ in files_of(manifest):
        if path.startswith("cpu/"):
            with open(os.path.join(folder, os.path.basename(path)), "xb") as file:
                file.write(read_regular(os.path.join(image, path), size))
    for path, _, _, runs in page_files_of(manifest, recorded):
        with open(os.path.join(folder, os.path.basename(path)), "xb") as file:
            for place, first, count in runs:
                for number in range(first, first + count):
                    page = bytes(PAGE) if place is None else packs[place].unit(number)
                    if page is None:
                        raise BadImage(f"{path} has pages in zstd, and there is no zstd here")
                    file.write(page)


# --- output -----------------------------------------------------------------------------------------

def verify(image):
    """Returns the deviations from the manifest, one line each."""
    findings = []
    manifest = read_manifest(image)
    chunk = one(manifest, 10, 0)
    listed = set()
    packs = []  # in the manifest's order; None if unreadable
    for path, size, checksums in files_of(manifest):
        listed.add(path)
        try:
            data = read_regular(os.path.join(image, path), size)
            found = [xxh3_128(data[i:i + chunk]) for i in range(0, size, chunk)]
            if found != checksums:
                raise BadImage(f"{path} is damaged")
        except (BadImage, OSError) as error:
            findings.append(str(error))
    recorded = list(packs_of(manifest))
    for message in recorded:
        listed.add(message["path"])
        try:
            packs.append(open_pack(image, message))
        except (BadImage, OSError) as error:
            findings.append(str(error))
            packs.append(None)
    for folder, folders, files in os.walk(image):
        below = os.path.relpath(folder, image)
        for name in files + folders:
            path = os.path.normpath(os.path.join(below, name))
            if path not in listed and path not in ("manifest.pb", *FOLDERS):
                findings.append(f"{path} is not part of the image")
    used = {}  # (pack, unit or extent): stored bytes
    for what, size, step, runs in [*ranges_of(manifest, recorded), *page_files_of(manifest, recorded)]:
        at = 0
        for place, first, count in runs:
            needed = min(count * step, size - at)
            at += needed
            pack = None if place is None else packs[place]
            if pack is None:
                continue  # zeros, or already reported
            if first + count > len(pack.units):
                findings.append(f"{what} needs unit {first + count} of {pack.where}, which has {len(pack.units)}")
                continue
            numbers = range(first, first + count)
            if sum(pack.bytes_of(number) for number in numbers) != needed:
                findings.append(f"{what} needs {needed} bytes of other units in {pack.where}")
                continue
            for number in numbers:
                if (pack, number) in used:
                    continue
                extent = pack.extents[number][0]
                used[pack, number] = 0 if extent[4] else pack.bytes_of(number)
                if extent[4]:
                    used[pack, extent] = extent[1]
                try:
                    pack.unit(number)
                except BadImage as error:
                    findings.append(str(error))
    for message, pack in zip(recorded, packs):
        mine = [(what, size) for (owner, what), size in used.items() if owner is pack]
        units = sum(not isinstance(what, tuple) for what, _ in mine)
        if pack and not findings and (units, sum(s for _, s in mine)) != (one(message, 6, 0), one(message, 7, 0)):
            findings.append(f"{message['path']} has other units for this image than recorded")
    return findings


def describe(image):
    manifest = read_manifest(image)
    job, host, software = (fields(one(manifest, n, b"")) for n in (5, 3, 4))
    print(f"image     {one(manifest, 1, b'').hex()}")
    key = origin_key_id(image)
    print(f"origin    {key.hex() if key else '-'}")
    print(f"job       {text(job, 1) or '-'}: " + " ".join(a.decode("utf-8", "replace") for a in job.get(2, [])))
    print(f"host      {text(host, 1)}, Linux {text(host, 2)}")
    print(f"software  Stasis {text(software, 1)}, CRIU {text(software, 2)}, "
          f"driver {text(software, 3)} ({text(software, 4)})")
    for raw in manifest.get(6, []):
        process = fields(raw)
        print(f"process   {one(process, 1, 0)} {text(process, 4)}")
    for raw in manifest.get(7, []):
        gpu = fields(raw)
        print(f"gpu       {text(gpu, 1)} {text(gpu, 2)}, {one(gpu, 4, 0)} bytes used")
    packs = list(packs_of(manifest))
    for what, size, _, runs in ranges_of(manifest, packs):
        print(f"{what}, {size} bytes, {sum(count for _, _, count in runs)} blocks")
    for message in packs:
        print(f"pack      {one(message, 7, 0):>12} {message['path']}, {one(message, 6, 0)} units of "
              f"{message['unit_bytes']} bytes" + (", of an earlier image" if one(message, 5, 0) else ""))
    for path, size, _, runs in page_files_of(manifest, packs):
        print(f"pages     {size:>12} {path}, in {len(runs)} runs")
    for path, size, _ in files_of(manifest):
        print(f"file      {size:>12} {path}")


def main():
    arguments = sys.argv[1:]
    checking = "--verify" in arguments
    arguments = [a for a in arguments if a != "--verify"]
    folder = arguments[1] if arguments[:1] == ["--cpu"] and len(arguments) == 3 else None
    if len(arguments) != (3 if folder else 1):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        findings = verify(arguments[-1]) if checking else []
        if folder:
            make_cpu_files(arguments[-1], folder)
        else:
            describe(arguments[-1])
    except (BadImage, OSError) as error:
        findings = [str(error)]
    if without_zstd:
        print(f"read_image: {without_zstd} extents in zstd were not decompressed: there is no zstd here", file=sys.stderr)
    for finding in findings:
        print(f"read_image: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
