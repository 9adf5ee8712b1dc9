"""Language models of published readings, by their names; transformers has most of them."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPT_350M = {
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
T5_SMALL = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "decoder_start_token_id": 0,
    "attn_implementation": "eager",  # the only one that T5 had then
}
GPT_NEO = {
    "hidden_size": 768,
    "num_layers": 12,
    "num_heads": 12,
    "attention_types": [[["global", "local"], 6]],
}
_VOCABULARY = {"opt-125m": 50272, "opt-350m": 50272, "t5-small": 32128}


def vocabulary(name: str) -> int:
    return _VOCABULARY.get(name, 50257)


def model(name: str):
    """Returns a function that makes a stock model, as in transformers at the time of the readings."""
    return functools.partial(_make, name)


def _make(name: str):
    import transformers as t

    match name:
        case "opt-125m":
            return t.OPTForCausalLM(t.OPTConfig())
        case "opt-350m":
            return t.OPTForCausalLM(t.OPTConfig(**OPT_350M))
        case "gpt2":
            return t.GPT2LMHeadModel(t.GPT2Config())
        case "distilgpt2":
            return t.GPT2LMHeadModel(t.GPT2Config(n_layer=6))
        case "cerebras-111m":
            return t.GPT2LMHeadModel(t.GPT2Config(n_layer=10, n_positions=2048, n_inner=3072))
        case "t5-small":
            return t.T5ForConditionalGeneration(t.T5Config(**T5_SMALL))
        case "gpt-neo-125m":
            return t.GPTNeoForCausalLM(t.GPTNeoConfig(**GPT_NEO))
    raise KeyError(name)


def step(batch: int, length: int, words: int):
    """A step of transformers' own loss, which returns (loss, outputs)."""

    def inner(net):
        ids = torch.randint(0, words, (batch, length), device="cuda")
        outputs = net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        return outputs.loss, outputs

    return inner


class HandNorm(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.shift = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        deviation = torch.sqrt(variance + 1e-5)
        return self.scale * ((x - mean) / deviation) + self.shift


class HandGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(torch.tensor(2.0 / torch.pi))
        return 0.5 * x * (1 + torch.tanh(root * (x + 0.044715 * torch.pow(x, 3))))


class HandAttention(nn.Module):
    def __init__(self, d: int, heads: int, stored: int):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, d, bias=False)
        self.v = nn.Linear(d, d, bias=False)
        self.out = nn.Linear(d, d)
        self.register_buffer("mask", None)
        if stored:
            self.mask = torch.triu(torch.ones(stored, stored), diagonal=1)

    def forward(self, x: Tensor) -> Tensor:
        B, L, d = x.shape
        shape = (B, L, self.heads, -1)
        k = self.k(x).view(shape).transpose(1, 2)
        q = self.q(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        scores = q @ k.transpose(2, 3)
        if self.mask is None:
            mask = torch.triu(torch.ones(L, L, dtype=torch.bool, device=x.device), diagonal=1)
        else:
            mask = self.mask.bool()[:L, :L]
        scores.masked_fill_(mask, -torch.inf)
        scale = k.shape[-1] ** 0.5
        weights = F.dropout(torch.softmax(scores / scale, -1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(B, L, d))


class FusedAttention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        B, L, d = x.shape
        qkv = self.qkv(x).view(B, L, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        dropout = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(B, L, d))


class GptLayer(nn.Module):
    def __init__(self, d: int, attention, norm, gelu):
        super().__init__()
        self.attention = attention()
        self.norm1 = norm(d)
        self.norm2 = norm(d)
        self.drop = nn.Dropout(0.1)
        up = nn.Linear(d, 4 * d)
        self.mlp = nn.Sequential(up, gelu(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.attention(self.norm1(x))) + x
        return self.drop(self.mlp(self.norm2(x))) + x


class Gpt(nn.Module):
    def __init__(self, attention, norm, gelu, words: int = 50257, d: int = 768, length: int = 1024):
        super().__init__()
        self.token = nn.Embedding(words, d)
        self.position = nn.Embedding(length, d)
        self.drop = nn.Dropout(0.1)
        layers = [GptLayer(d, attention, norm, gelu) for _ in range(12)]
        self.blocks = nn.Sequential(*layers)
        self.norm = norm(d)
        self.head = nn.Linear(d, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(self.drop(self.token(ids) + positions))))


def gpt(attention: str, fused: bool = False, half: bool = False, words: int = 50257) -> nn.Module:
    """`attention`: "stored" mask, mask made "anew", or the "fused" kernel; `fused`: torch's norm and GELU."""
    kinds = {
        "stored": functools.partial(HandAttention, 768, 12, 1024),
        "anew": functools.partial(HandAttention, 768, 12, 0),
        "fused": functools.partial(FusedAttention, 768, 12),
    }
    norm = HandNorm
    gelu = HandGelu
    if fused:
        norm = nn.LayerNorm
        gelu = functools.partial(nn.GELU, approximate="tanh")
    net = Gpt(kinds[attention], norm, gelu, words)
    if half:
        return net.to(torch.bfloat16)
    return net


def gpt_step(batch: int, words: int = 50257):
    def step(net):
        ids = torch.randint(0, words, (batch, 1024), device="cuda")
        targets = torch.randint(0, words, (batch, 1024), device="cuda")
        return F.cross_entropy(net(ids).flatten(0, 1), targets.flatten())

    return step


def bert_large(recomputed: bool) -> nn.Module:
    import transformers as t

    config = t.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager",
    )  # fmt: skip
    net = t.BertForSequenceClassification(config)
    if recomputed:
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return net


def bert_step(batch: int):
    def step(net):
        ids = torch.randint(100, 30000, (batch, 512), device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        return net(input_ids=ids, labels=labels).loss

    return step


class OldAdamW(torch.optim.AdamW):
    """AdamW at that time: one parameter after the other, and gradients are filled with zeros."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=5e-5, foreach=False)

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


class RmsNorm(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(torch.mean(wide * wide, -1, keepdim=True) + 1e-5)
        return (self.weight * (wide * scale)).to(x.dtype)


class AdaptedQkv(nn.Module):
    def __init__(self, d: int, rank: int = 8):
        super().__init__()
        self.d = d
        self.weight = nn.Linear(d, 3 * d, bias=False)
        self.lora_a = nn.Parameter(torch.empty(2 * rank, d))
        self.lora_b = nn.Parameter(torch.empty(2 * d, rank))
        places = torch.cat((torch.arange(d), torch.arange(2 * d, 3 * d)))
        self.register_buffer("places", places, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.dropout(x, 0.05, self.training), self.lora_a)
        weight = self.lora_b.unsqueeze(-1)
        up = F.conv1d(low.transpose(-2, -1), weight, groups=2).transpose(-2, -1)
        shape = (*x.shape[:-1], 3 * self.d)
        whole = torch.zeros(shape, dtype=x.dtype, device=x.device)
        return self.weight(x) + whole.index_copy(2, self.places, up) * 2.0


class LlamaLayer(nn.Module):
    def __init__(self, d: int, heads: int, wide: int):
        super().__init__()
        self.heads = heads
        self.norm1 = RmsNorm(d)
        self.norm2 = RmsNorm(d)
        self.qkv = AdaptedQkv(d)
        self.out = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, wide, bias=False)
        self.up = nn.Linear(d, wide, bias=False)
        self.down = nn.Linear(wide, d, bias=False)

    @staticmethod
    def swapped(x: Tensor) -> Tensor:
        half = x.size(-1) // 2
        return torch.cat((-x[..., half:], x[..., :half]), -1)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return (x * cos + self.swapped(x) * sin).type_as(x)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, L, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, L, self.heads, 3, -1)
        q, k, v = qkv.permute(0, 2, 3, 1, 4).unbind(2)
        q = self.turned(q, cos, sin)
        k = self.turned(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, L, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int, d: int, heads: int, wide: int):
        super().__init__()
        self.token = nn.Embedding(32000, d)
        self.width = d // heads
        self.layers = nn.ModuleList(LlamaLayer(d, heads, wide) for _ in range(layers))
        self.norm = RmsNorm(d)
        self.head = nn.Linear(d, 32000, bias=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, ids: Tensor) -> list[Tensor]:
        x = self.token(ids)
        angles = torch.ones(ids.shape[1], self.width, dtype=x.dtype, device=x.device)
        for layer in self.layers:
            x = layer(x, angles, angles)
        return [self.head(part) for part in self.norm(x).split(128, dim=1)]


def llama(size: str) -> nn.Module:
    sizes = {"7B": (32, 4096, 32, 11008), "13B": (40, 5120, 40, 13824)}
    return Llama(*sizes[size]).to(torch.bfloat16)


def llama_step(batch: int, length: int = 1304):
    """lit-gpt's step: the loss in chunks of 128 positions."""

    def step(net):
        ids = torch.randint(0, 32000, (batch, length), device="cuda")
        chunks = net(ids)
        chunks[-1] = chunks[-1][..., :-1, :]
        targets = [part.reshape(-1) for part in ids[:, 1:].split(128, dim=1)]
        losses = []
        for chunk, part in zip(chunks, targets, strict=True):
            flat = chunk.reshape(-1, 32000)
            losses.append(F.cross_entropy(flat, part, ignore_index=-1, reduction="none"))
        return torch.cat(losses).mean()

    return step


def trained_only(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad])
