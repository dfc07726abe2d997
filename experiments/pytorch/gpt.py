"""GPT-2 as it is usually written in PyTorch, with Orrery's parameters and tokens.

One product for q, k and v, scaled_dot_product_attention, a tied table, cross_entropy. Parameters and order of data are those of `orrery train`
(base/rng.h, executor/state/state.cc, executor/state/data.cc), so that the losses of both are one curve.
"""
import pathlib

import numpy
import torch
from torch import nn
from torch.nn import functional as F

MASK32 = numpy.uint64(0xFFFFFFFF)
SEQUENCE_STREAM = 0x5345515545
ROOT = pathlib.Path(__file__).resolve().parents[2]


def philox(seed, index, domain):
    """Philox4x32-10 of the counter (index, domain, 0) under the key `seed`: the first 64 bits."""
    index = numpy.asarray(index, dtype=numpy.uint64)
    c = [index & MASK32, index >> numpy.uint64(32), numpy.full_like(index, domain), numpy.zeros_like(index)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [(p1 >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(key[0]), p1 & MASK32,
             (p0 >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(key[1]), p0 & MASK32]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[1] << numpy.uint64(32) | c[0]


def derive(seed, stream):
    return int(philox(seed, stream, 1))


def name_hash(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def normal(seed, name, shape, sigma):
    stream, count = derive(seed, name_hash(name)), int(numpy.prod(shape))
    values = torch.empty(count)
    for first in range(0, count, 1 << 20):
        bits = philox(stream, numpy.arange(first, min(first + (1 << 20), count)), 0) >> numpy.uint64(12)
        p = torch.from_numpy((bits.astype(numpy.float64) + 0.5) * 2.0**-52)
        values[first:first + len(p)] = (sigma * torch.special.ndtri(p)).float()
    return values.view(shape)


def initial_parameters(config, seed):
    """By the names of this model."""
    h, layers = config["n_embd"], config["n_layer"]
    scaled = 0.02 / (2.0 * layers)**0.5
    state = {"token.weight": normal(seed, "embedding.token.weight", (config["vocab_size"], h), 0.02),
             "position.weight": normal(seed, "embedding.position.weight", (config["n_positions"], h), 0.02)}
    for i in range(layers):
        own = f"blocks.{i}."
        qkv = [normal(seed, f"{own}attn.{part}.weight", (h, h), 0.02) for part in "qkv"]
        state[own + "qkv.weight"] = torch.cat(qkv)
        state[own + "proj.weight"] = normal(seed, own + "attn.proj.weight", (h, h), scaled)
        state[own + "up.weight"] = normal(seed, own + "mlp.in.weight", (4 * h, h), 0.02)
        state[own + "down.weight"] = normal(seed, own + "mlp.out.weight", (h, 4 * h), scaled)
    return state


def corpus():
    return b"".join(p.read_bytes() for p in sorted((ROOT / "executor" / "data").glob("*.txt")))


class Batches:
    """The sequences of a step, with their targets."""

    def __init__(self, seed, batch, tokens):
        self.stream, self.batch, self.tokens = derive(seed, SEQUENCE_STREAM), batch, tokens
        self.text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).long()

    def read(self, step, first=0, count=None):
        index = step * self.batch + first + numpy.arange(self.batch if count is None else count)
        starts = philox(self.stream, index, 0) % numpy.uint64(len(self.text) - self.tokens)
        rows = torch.stack([self.text[int(s):int(s) + self.tokens + 1] for s in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Block(nn.Module):

    def __init__(self, h, heads):
        super().__init__()
        self.heads, self.head_dim = heads, h // heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """`layers` of the model's: the first part has the embedding, the last the head."""

    def __init__(self, config, layers=None, first=True, last=True):
        super().__init__()
        h = config["n_embd"]
        layers = range(config["n_layer"]) if layers is None else layers
        self.token = nn.Embedding(config["vocab_size"], h)  # of the last part, too: tied
        self.position = nn.Embedding(config["n_positions"], h) if first else None
        self.blocks = nn.ModuleDict({str(i): Block(h, config["n_head"]) for i in layers})
        self.norm = nn.LayerNorm(h) if last else None
        self.head = nn.Linear(h, config["vocab_size"], bias=False) if last else None
        self.tie()

    def tie(self):
        if self.head is not None:
            self.head.weight = self.token.weight

    def features(self, x):
        if self.position is not None:
            x = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return x

    def forward(self, x):
        x = self.features(x)
        return x if self.head is None else self.head(self.norm(x))

    def load(self, state):
        """Missing ones keep PyTorch's start: gains are one; biases start at zero here."""
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name in state:
                    p.copy_(state[name])
                elif name.endswith("bias"):
                    p.zero_()


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer_of(model, rate=3e-4):
    """As `orrery train`: matrices decay, vectors do not."""
    groups = {}
    for p in model.parameters():  # a fused call takes tensors of one kind
        groups.setdefault((p.dim() > 1, type(p)), []).append(p)
    groups = [{"params": ps, "weight_decay": 0.1 if matrix else 0.0} for (matrix, _), ps in groups.items()]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)
