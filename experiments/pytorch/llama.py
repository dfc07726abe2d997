"""Llama as it is usually written in PyTorch: grouped heads, rotary embedding in halves, RMSNorm, SwiGLU."""
import torch
from torch import nn
from torch.nn import functional as F


def angles(tokens, head_dim, theta, device):
    frequencies = theta**(-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    turn = torch.outer(torch.arange(tokens, device=device, dtype=torch.float32), frequencies)
    return turn.cos(), turn.sin()


def rotate(x, cos, sin):
    """[b, s, heads, d] by the angles of its positions."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Block(nn.Module):

    def __init__(self, c):
        super().__init__()
        h, self.heads, self.kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim, ffn = h // self.heads, c["intermediate_size"]
        self.norm1, self.norm2 = (nn.RMSNorm(h, eps=c["rms_norm_eps"]) for _ in range(2))
        self.qkv = nn.Linear(h, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.proj = nn.Linear(h, h, bias=False)
        self.gate_up, self.down = nn.Linear(h, 2 * ffn, bias=False), nn.Linear(ffn, h, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, -1, self.head_dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, s, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):

    def __init__(self, c):
        super().__init__()
        self.token = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.head_dim, self.theta = c["hidden_size"] // c["num_attention_heads"], c["rope_theta"]

    def features(self, x):
        cos, sin = angles(x.shape[1], self.head_dim, self.theta, x.device)
        x = self.token(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x
