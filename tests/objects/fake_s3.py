#!/usr/bin/env python3
"""A strict S3 server in memory, with faults, for the tests of src/objects.

usage: fake_s3.py [--tls CERTIFICATE KEY]

Prints its port, and ends at the end of its standard input. Has the bucket `bucket` in the region `test-1` and the key
AKIDTEST with the secret `secret`. Checks the signature of each request by its own code, the hash of each body, and
refuses every header, query and method that this test server does not know.

PUT /_faults takes a JSON list of faults. Each has a method, a part of the target, a count, and a kind:
  refuse   closes the connection without an answer
  status   answers `status` with the S3 error `code` (and the headers `headers`)
  cut      closes the connection after `bytes` of the body
  short    announces and sends a body that is `bytes` shorter
  range    announces and sends another range
  token    the session token is taken as expired
PUT /_object takes a JSON string, and puts an empty object with this key, whatever it is.
GET /_log returns the requests since the last faults: method, target, status, port of the client.
"""

import datetime
import email.utils
import hashlib
import hmac
import http.server
import json
import re
import socketserver
import ssl
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape

BUCKET, REGION, KEYS = 'bucket', 'test-1', {'AKIDTEST': ('secret', None), 'ASIATEST': ('secret', 'token')}
HEADERS = {'host', 'x-amz-date', 'x-amz-content-sha256', 'x-amz-security-token', 'authorization', 'range', 'if-match',
           'content-type', 'content-length', 'accept'}
LIST_QUERY = {'list-type', 'max-keys', 'prefix', 'start-after', 'encoding-type'}
LOCK = threading.Lock()
OBJECTS, TIMES, FAULTS, LOG = {}, {}, [], []


class Refused(Exception):
    def __init__(self, status, code, message='', headers=None):
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


def quote(text, safe=''):
    return urllib.parse.quote(text, safe='-_.~' + safe)


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check_signature(request, path, query):
    """The server's half of AWS Signature Version 4, written from its documentation."""
    match = re.fullmatch(r'AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, '
                         r'SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})',
                         request.headers.get('authorization', ''))
    if not match:
        raise Refused(403, 'AccessDenied')
    key_id, day, region, names, signature = match.groups()
    if key_id not in KEYS:
        raise Refused(403, 'InvalidAccessKeyId')
    secret, token = KEYS[key_id]
    if request.headers.get('x-amz-security-token') != token:
        raise Refused(400, 'InvalidToken')
    if region != REGION:
        raise Refused(400, 'AuthorizationHeaderMalformed', f'<Region>{REGION}</Region>')
    signed = names.split(';')
    must = {'host'} | {name.lower() for name in request.headers if name.lower().startswith('x-amz-') or
                       name.lower() in ('range', 'if-match', 'content-type')}
    if signed != sorted(signed) or not must <= set(signed):
        raise Refused(403, 'AccessDenied', 'a header is not signed')
    time = request.headers.get('x-amz-date', '')
    stamp = datetime.datetime.strptime(time, '%Y%m%dT%H%M%SZ').replace(tzinfo=datetime.timezone.utc)
    if abs((datetime.datetime.now(datetime.timezone.utc) - stamp).total_seconds()) > 900:
        raise Refused(403, 'RequestTimeTooSkewed')
    canonical = '\n'.join([request.command, quote(path, '/'),
                           '&'.join(f'{quote(k)}={quote(v)}' for k, v in sorted(query)),
                           *(f'{name}:{request.headers[name].strip()}' for name in signed), '', names,
                           request.headers['x-amz-content-sha256']])
    text = '\n'.join(['AWS4-HMAC-SHA256', time, f'{day}/{region}/s3/aws4_request',
                      hashlib.sha256(canonical.encode()).hexdigest()])
    key = ('AWS4' + secret).encode()
    for part in (day, region, 's3', 'aws4_request'):
        key = mac(key, part)
    if not hmac.compare_digest(mac(key, text).hex(), signature) or not time.startswith(day):
        raise Refused(403, 'SignatureDoesNotMatch')


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    fault = None

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def answer(self, status, body=b'', headers=None):
        with LOCK:
            LOG.append([self.command, self.path, status, self.client_address[1]])
        fault = self.fault or {}
        announced = len(body)
        if fault.get('kind') == 'short':
            announced -= fault['bytes']
            body = body[:announced]
        self.send_response(status)
        for name, value in {'Content-Length': announced, **(headers or {}), **fault.get('headers', {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == 'HEAD':
            return
        if fault.get('kind') == 'cut':
            body = body[:fault['bytes']]
            self.close_connection = True
        self.wfile.write(body)

    def take_fault(self):
        with LOCK:
            for fault in FAULTS:
                if fault['count'] > 0 and fault['method'] == self.command and fault['target'] in self.path:
                    fault['count'] -= 1
                    return fault
        return None

    def control(self, body):
        with LOCK:
            if self.path == '/_faults':
                FAULTS[:] = json.loads(body)
                LOG.clear()
            elif self.path == '/_object':
                OBJECTS[json.loads(body)] = b''
            text = json.dumps(LOG).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def serve(self):
        body = self.rfile.read(int(self.headers.get('content-length', 0)))
        if self.path.startswith('/_'):
            self.control(body)
            return
        self.fault = self.take_fault()
        kind = (self.fault or {}).get('kind')
        if kind == 'refuse':
            self.close_connection = True
            return
        try:
            if kind == 'status':
                raise Refused(self.fault['status'], self.fault['code'])
            self.handle_s3(body)
        except Refused as refused:
            text = (f'<?xml version="1.0"?><Error><Code>{refused.code}</Code>'
                    f'<Message>test</Message>{refused.message}</Error>').encode()
            date = {'Date': email.utils.formatdate(usegmt=True)}
            self.answer(refused.status, b'' if self.command == 'HEAD' else text, {**date, **refused.headers})

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve

    def handle_s3(self, body):
        for name in self.headers:
            if name.lower() not in HEADERS:
                raise Refused(501, 'NotImplemented', name)
        target = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(target.path)
        query = urllib.parse.parse_qsl(target.query, keep_blank_values=True)
        check_signature(self, path, query)
        if (self.fault or {}).get('kind') == 'token':
            raise Refused(400, 'ExpiredToken')
        stated = self.headers['x-amz-content-sha256']
        if stated not in ('UNSIGNED-PAYLOAD', hashlib.sha256(body).hexdigest()):
            raise Refused(400, 'XAmzContentSHA256Mismatch')
        host = self.headers['host'].split(':')[0]
        if host.startswith(BUCKET + '.'):
            bucket, key = BUCKET, path[1:]
        else:
            bucket, key = (path[1:].split('/', 1) + [''])[:2]
        if bucket != BUCKET:
            raise Refused(404, 'NoSuchBucket')
        if not key:
            self.list(dict(query))
        elif query:
            raise Refused(501, 'NotImplemented', 'query')
        else:
            getattr(self, 'object_' + self.command.lower(), self.unknown)(key, body)

    def unknown(self, *_):
        raise Refused(405, 'MethodNotAllowed')

    def object_put(self, key, body):
        if 'content-length' not in self.headers:
            raise Refused(411, 'MissingContentLength')
        with LOCK:
            OBJECTS[key] = body
            TIMES[key] = datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%S.000Z')
        self.answer(200, b'', {'ETag': f'"{hashlib.md5(body).hexdigest()}"'})

    def object_delete(self, key, _):
        with LOCK:
            OBJECTS.pop(key, None)
        self.answer(204)

    def object_head(self, key, _):
        self.object_get(key, _)

    def object_get(self, key, _):
        with LOCK:
            data = OBJECTS.get(key)
        if data is None:
            raise Refused(404, 'NoSuchKey')
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get('if-match', etag) != etag:
            raise Refused(412, 'PreconditionFailed')
        asked = self.headers.get('range')
        if asked is None:
            self.answer(200, data, {'ETag': etag})
            return
        first, last = map(int, re.fullmatch(r'bytes=(\d+)-(\d+)', asked).groups())
        if first >= len(data):
            raise Refused(416, 'InvalidRange')
        last = min(last, len(data) - 1)
        if (self.fault or {}).get('kind') == 'range':
            first = first + 1
        self.answer(206, data[first:last + 1], {'ETag': etag, 'Content-Range': f'bytes {first}-{last}/{len(data)}'})

    def list(self, query):
        if self.command != 'GET' or not set(query) <= LIST_QUERY or query.get('list-type') != '2':
            raise Refused(501, 'NotImplemented', 'list')
        with LOCK:
            keys = sorted(key for key in OBJECTS
                          if key.startswith(query.get('prefix', '')) and key > query.get('start-after', ''))
            sizes = {key: len(OBJECTS[key]) for key in keys}
            times = {key: f'<LastModified>{TIMES[key]}</LastModified>' for key in keys if key in TIMES}
        page = keys[:int(query.get('max-keys', 1000))]
        items = ''.join(f'<Contents><Key>{escape(quote(key, "/"))}</Key>{times.get(key, "")}'
                        f'<Size>{sizes[key]}</Size></Contents>'
                        for key in page)
        self.answer(200, '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/">'
                    f'<EncodingType>url</EncodingType><IsTruncated>{str(len(page) < len(keys)).lower()}</IsTruncated>'
                    f'{items}</ListBucketResult>'.encode())


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    server = Server(('127.0.0.1', 0), Handler)
    if sys.argv[1:2] == ['--tls']:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == '__main__':
    main()
