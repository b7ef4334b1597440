#!/usr/bin/env python3
"""Fakes of the services that hand out credentials, for the tests of src/objects.

Prints its port, and ends at the end of its standard input:
  /latest/...       EC2's metadata service, version 2
  /container, /v2/  the endpoint of a container, with the authorization `let me in`
  /long             an answer that is too long
  POST /            STS: AssumeRoleWithWebIdentity with the token `web-token`
"""

import http.server
import json
import sys
import threading
import urllib.parse

JSON = {'Code': 'Success', 'AccessKeyId': '', 'SecretAccessKey': 'secret', 'Token': 'token',
        'Expiration': '2100-01-01T00:00:00Z'}
ROLES = '/latest/meta-data/iam/security-credentials/'


def keys(key_id):
    return 200, json.dumps({**JSON, 'AccessKeyId': key_id})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def reply(self, body):
        if (self.command, self.path) == ('PUT', '/latest/api/token'):
            lifetime = self.headers.get('x-aws-ec2-metadata-token-ttl-seconds')
            return (200, 'session') if lifetime == '21600' else (400, '')
        if self.path.startswith('/latest/'):
            if self.headers.get('x-aws-ec2-metadata-token') != 'session':
                return 401, ''
            return {ROLES: (200, 'role name'), ROLES + 'role%20name': keys('ec2')}.get(self.path, (404, ''))
        if self.path in ('/container', '/v2/credentials'):
            return keys('container') if self.headers.get('authorization') == 'let me in' else (403, '')
        if self.path == '/long':
            return 200, ' ' * 100_000
        if self.command == 'POST' and self.path == '/':
            form = dict(urllib.parse.parse_qsl(body.decode()))
            if form['Action'] != 'AssumeRoleWithWebIdentity' or form['RoleArn'] != 'arn:aws:iam::1:role/r':
                return 400, ''
            if form['WebIdentityToken'] != 'web-token':
                return 400, ('<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>too old</Message>'
                             '</Error></ErrorResponse>')
            return 200, ('<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                         '<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>web</AccessKeyId>'
                         '<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>'
                         '<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>'
                         '</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>')
        return 404, ''

    def serve(self):
        status, text = self.reply(self.rfile.read(int(self.headers.get('content-length', 0))))
        self.send_response(status)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = serve


server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
