"""A model of Llama-8B's shape with random weights that generates continuously, beside a tensor of
random words. A round is one token; its checksum is the token's id. After `--tokens` rounds the same
text starts again with the same seed: every round must equal the one that many rounds before.

  --layers N   32 is Llama-8B
  --cache GIB  the size of the tensor
  --ranks N    cuts the model over N GPUs (1, 2, 4 or 8; tensor parallelism): each process (ranks.py) has its share
               of the heads and of the MLP, and NCCL sums their outputs, twice for each layer
"""

import ranks as ranks_of
from protocol import Protocol
from torch_inference import weights_sum

VOCABULARY = 128256
PROMPT = 64
SLICE_WORDS = 32 << 20  # 256 MiB


def options(parser):
    ranks_of.options(parser, ranks=1)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=48)


def build(torch, layers, parts=1):
    """Returns a model with one part of the heads and of the MLP."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336 // parts, head_dim=128,
            num_hidden_layers=layers, num_attention_heads=32 // parts, num_key_value_heads=8 // parts,
            max_position_embeddings=4096, tie_word_embeddings=False)).eval()


def join_parts(torch, model, rank):
    """Makes the model one rank's part of a larger one: draws weights of its own, and sums the outputs
    of attention and MLP over all ranks."""
    import torch.distributed as dist

    def sum_over_ranks(_module, _inputs, output):
        dist.all_reduce(output)
        return output

    torch.manual_seed(100 + rank)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                     mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            part.weight.normal_(0, 0.02)
        for last in (attention.o_proj, mlp.down_proj):
            last.register_forward_hook(sum_over_ranks)


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

    first, parts = protocol.options.rank == 0, protocol.options.ranks
    if first:
        protocol.imported()
    ranks = ranks_of.Ranks(protocol) if parts > 1 else None
    if ranks:
        ranks.join(torch)
    torch.use_deterministic_algorithms(True)
    with torch.inference_mode():
        model = build(torch, protocol.options.layers, parts)
        if ranks:
            join_parts(torch, model, ranks.rank)
        cache = random_words(torch, protocol.options.cache)
        sums = weights_sum(torch, model), words_sum(torch, cache)
        expandable = any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())
        print(f"MODEL {sum(p.numel() for p in model.parameters())} parameters, cache {sums[1]:016x}, "
              f"expandable segments: {expandable}", flush=True)
        if first:
            protocol.ready()
        rounds = ranks.rounds() if ranks else protocol.rounds()
        for number, token in zip(rounds, tokens(torch, model, protocol.options.tokens)):
            if first:
                protocol.print_round(number, token)
        print(f"CACHE {words_sum(torch, cache):016x}", flush=True)
        (ranks or protocol).finish((weights_sum(torch, model), words_sum(torch, cache)) == sums,
                                   "the weights or the cache have changed")


if __name__ == "__main__":
    main()
