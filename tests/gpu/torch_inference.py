"""Greedy decoding with a model of Qwen3's shape and random weights. A round is one prompt, with a
checksum of its tokens."""

import hashlib

from protocol import Protocol

TOKENS = 24
VOCABULARY = 32768


def build(torch):
    """Returns (model, its family): Qwen3 if transformers supports it, else Llama."""
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
        "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }
    try:
        from transformers import Qwen3Config as Config, Qwen3ForCausalLM as Model
        shape["head_dim"] = 128
    except ImportError:
        from transformers import LlamaConfig as Config, LlamaForCausalLM as Model
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(Config(**shape))
    return model.eval(), Model.__name__


def weights_sum(torch, model):
    """Returns an exact sum over the bits of all weights."""
    total = 0
    for parameter in model.parameters():
        total += int(parameter.detach().view(torch.int16).sum(dtype=torch.int64))
    return total


def generate(torch, model, prompt):
    tokens, ids, past = [], prompt, None
    for _ in range(TOKENS):
        out = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        ids = out.logits[:, -1:].argmax(-1)
        tokens.append(ids)
    return torch.cat(tokens, 1).cpu()


def main():
    protocol = Protocol()
    import torch

    torch.use_deterministic_algorithms(True)
    with torch.inference_mode():
        model, family = build(torch)
        sum_at_start = weights_sum(torch, model)
        print(f"MODEL {family} {sum(p.numel() for p in model.parameters())} parameters", flush=True)
        protocol.ready()
        for number in protocol.rounds():
            generator = torch.Generator().manual_seed(number)
            prompt = torch.randint(VOCABULARY, (2, 64), generator=generator).cuda()
            tokens = generate(torch, model, prompt)
            protocol.print_round(number, hashlib.sha256(tokens.numpy().tobytes()).hexdigest()[:16])
        protocol.finish(weights_sum(torch, model) == sum_at_start, "the weights have changed")


if __name__ == "__main__":
    main()
