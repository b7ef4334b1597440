#!/usr/bin/env python3
"""One address for several model servers: the first part of a path names the server.

    model_proxy.py --port 8000 llama=8001 qwen=8002
    curl http://127.0.0.1:8000/llama/generate?seed=7

It does not use Stasis. If the servers share a GPU (stasis run --share), a request to one that is suspended is answered
when it has its memory back.
"""

import argparse
import http.server
import urllib.error
import urllib.request

ANSWER_S = 600


def handler(ports):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            _, name, *rest = self.path.split("/", 2)
            if name not in ports:
                return self.answer(404, f"there is no model {name}\n".encode())
            url = f"http://127.0.0.1:{ports[name]}/{''.join(rest)}"
            try:
                with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                    return self.answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                return self.answer(error.code, error.read())
            except OSError as error:
                return self.answer(502, f"{name} does not answer: {error}\n".encode())

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("models", nargs="+", metavar="NAME=PORT")
    options = parser.parse_args()
    ports = dict(model.split("=", 1) for model in options.models)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler(ports))
    print("READY", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
