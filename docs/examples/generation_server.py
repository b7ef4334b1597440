#!/usr/bin/env python3
"""A small generation server: a model of Llama's shape with random weights behind HTTP.

    generation_server.py --port 8001 --layers 32 --cache 40

    GET /generate?seed=7&tokens=16    {"tokens": [...], "seconds": 0.31}: the same for the same seed, always
    GET /healthz                      "ok", without the GPU

It does not use Stasis. While it is suspended, /generate waits and /healthz answers.

  --layers N    32 is Llama-8B (15 GiB)
  --cache GIB   memory reserved for requests, in addition to the model. It is filled with random words, so
                that a suspend has to copy all of it
  --soft        uses a block of GPU memory instead of the model, by the driver's own interface, without PyTorch
"""

import argparse
import ctypes
import http.server
import json
import random
import threading
import time
import urllib.parse

VOCABULARY = 128256


class LlamaShape:
    def __init__(self, layers, cache_gib):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch = torch
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336,
                num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
                max_position_embeddings=4096, tie_word_embeddings=False)).eval()
        self.cache = torch.empty(cache_gib << 27, dtype=torch.int64, device="cuda")
        for piece in self.cache.split(1 << 27):
            piece.random_()

    def generate(self, seed, count):
        torch = self.torch
        with torch.inference_mode():
            generator = torch.Generator("cuda").manual_seed(seed)
            ids = torch.arange(64, device="cuda")[None] * (997 + seed) % VOCABULARY
            past, tokens = None, []
            for _ in range(count):
                out = self.model(input_ids=ids, past_key_values=past, use_cache=True)
                past = out.past_key_values
                chances = out.logits[:, -1].float().softmax(-1)
                noise = torch.empty_like(chances).exponential_(generator=generator)
                ids = (chances / noise).argmax(-1, keepdim=True)
                tokens.append(int(ids))
            return tokens


class SoftModel:
    """A model whose tokens are words of GPU memory, so that every token needs a copy from the GPU."""

    WORDS = 4 << 20  # 32 MiB

    def __init__(self, *_):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, self.context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self._call("cuCtxSetCurrent", self.context)
        self._call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(8 * self.WORDS))
        words = random.Random(1).randbytes(8 * self.WORDS)
        self._call("cuMemcpyHtoD_v2", self.memory, words, ctypes.c_size_t(len(words)))

    def _call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def generate(self, seed, count):
        self._call("cuCtxSetCurrent", self.context)
        chooser, word, tokens = random.Random(seed), ctypes.c_uint64(), []
        for _ in range(count):
            at = ctypes.c_uint64(self.memory.value + 8 * chooser.randrange(self.WORDS))
            self._call("cuMemcpyDtoH_v2", ctypes.byref(word), at, ctypes.c_size_t(8))
            tokens.append(word.value % VOCABULARY)
        return tokens


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        if url.path == "/healthz":
            return self.answer(200, b"ok\n")
        if url.path != "/generate":
            return self.answer(404, b"the paths are /generate and /healthz\n")
        try:
            seed, count = int(query.get("seed", ["0"])[0]), int(query.get("tokens", ["16"])[0])
        except ValueError:
            return self.answer(400, b"seed and tokens must be numbers\n")
        began = time.monotonic()
        with self.server.gpu:
            tokens = self.server.model.generate(seed % 1000, min(max(count, 1), 512))
        document = {"tokens": tokens, "seconds": time.monotonic() - began}
        return self.answer(200, json.dumps(document).encode() + b"\n")

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--soft", action="store_true")
    options = parser.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    server.gpu = threading.Lock()
    server.model = (SoftModel if options.soft else LlamaShape)(options.layers, options.cache)
    server.model.generate(0, 4)
    print("READY", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
