"""A model of Llama-8B's shape with random weights that generates continuously, beside a tensor of
random words. A round is one token; its checksum is the token's id. After `--tokens` rounds the same
text starts again with the same seed: every round must equal the one that many rounds before.

  --layers N   32 is Llama-8B
  --cache GIB  the size of the tensor
"""

from protocol import Protocol
from torch_inference import weights_sum

VOCABULARY = 128256
PROMPT = 64
SLICE_WORDS = 32 << 20  # 256 MiB


def options(parser):
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=48)


def build(torch, layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336,
            num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
            max_position_embeddings=4096, tie_word_embeddings=False)).eval()


def random_words(torch, gib, device="cuda"):
    words = torch.empty(gib << 27, dtype=torch.int64, device=device)
    generator = torch.Generator(device).manual_seed(2)
    for piece in words.split(SLICE_WORDS):
        piece.random_(generator=generator)
    return words


def words_sum(torch, words):
    """Modulo 2^64; depends on the position of each word."""
    total = 0
    factors = torch.arange(1, 2 * SLICE_WORDS, 2, dtype=torch.int64, device=words.device)
    for piece in words.split(SLICE_WORDS):
        own = int((piece * factors[:len(piece)]).sum())
        total = (total * 0x9E3779B97F4A7C15 + own) % 2**64
    return total


def tokens(torch, model, count):
    """Generates endlessly. Samples at random, because greedy choices soon repeat themselves."""
    prompt = torch.arange(PROMPT, device="cuda")[None] * 997 % VOCABULARY
    while True:
        generator = torch.Generator("cuda").manual_seed(3)
        ids, past = prompt, None
        for _ in range(count):
            out = model(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            chances = out.logits[:, -1].float().softmax(-1)
            noise = torch.empty_like(chances).exponential_(generator=generator)
            ids = (chances / noise).argmax(-1, keepdim=True)
            yield int(ids)


def main():
    protocol = Protocol(options)
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - imported early for build()

    protocol.imported()
    torch.use_deterministic_algorithms(True)
    with torch.inference_mode():
        model = build(torch, protocol.options.layers)
        cache = random_words(torch, protocol.options.cache)
        sums = weights_sum(torch, model), words_sum(torch, cache)
        expandable = any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())
        print(f"MODEL {sum(p.numel() for p in model.parameters())} parameters, cache {sums[1]:016x}, "
              f"expandable segments: {expandable}", flush=True)
        protocol.ready()
        for number, token in zip(protocol.rounds(), tokens(torch, model, protocol.options.tokens)):
            protocol.print_round(number, token)
        print(f"CACHE {words_sum(torch, cache):016x}", flush=True)
        protocol.finish((weights_sum(torch, model), words_sum(torch, cache)) == sums,
                        "the weights or the cache have changed")


if __name__ == "__main__":
    main()
