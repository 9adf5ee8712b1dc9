"""The repeated layers of any model: found, recomputed with the same gradient, planned, and refused where none are."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.planner import make
from lib.planner.card import find_card
from lib.task import load_config, load_task
from lib.task.blocks import find_blocks
from lib.task.contract import checked_blocks
from lib.training.recomputation import recompute
from lib.training.state import new_state
from tests.toy import Net
from tests.training.test_loop import same_tensors

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 11}


class Wrapped(nn.Module):
    """What peft puts around a model."""

    def __init__(self, model):
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, *args, **kwargs):
        return self.base_model.model(*args, **kwargs)


def bert():
    config = transformers.BertConfig(**SMALL, num_hidden_layers=2, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config)


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_hidden_layers=3, attention_dropout=0.2)
    )


def wrapped_gpt2():
    return Wrapped(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11)
        )
    )


def t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 11}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )


class Block(nn.Module):
    def __init__(self, wide=2):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 4 * wide), nn.GELU(), nn.Linear(4 * wide, 4))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def staged():
    """As timm builds ConvNeXt and Swin: something smaller before, and the layers of a stage in a sequence."""

    def stage(depth):
        blocks = nn.Sequential(*[Block() for _ in range(depth)])
        return nn.Sequential(OrderedDict(downsample=nn.Linear(4, 4), blocks=blocks))

    model = nn.Module()
    model.stem = nn.Linear(3, 4)
    model.stages = nn.Sequential(stage(2), stage(3))
    model.head = nn.Linear(4, 1)
    return model


def wrapped_stages():
    return Wrapped(staged())


def convolution(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3), nn.BatchNorm2d(after), nn.ReLU())


def convolutions():
    return nn.Sequential(convolution(3, 4), convolution(4, 4), convolution(4, 8))


def perceptron():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("make_model", "kind", "count"),
    [
        (bert, "BertLayer", 2),
        (llama, "LlamaDecoderLayer", 3),
        (wrapped_gpt2, "GPT2Block", 2),
        (t5, "T5Block", 4),
        (wrapped_stages, "Block", 5),
        (convolutions, "Sequential", 3),
        (perceptron, "", 0),
    ],
)
def test_repeated_layers_are_found_in_any_model(make_model, kind, count):
    names = [type(block).__name__ for block in find_blocks(make_model())]
    assert names == [kind] * count


IDS = torch.arange(12).reshape(3, 4) % 11
LABELS = torch.tensor([0, 1, 1])


def stages_loss(model):
    return model.head(model.stages(model.stem(torch.ones(5, 3)))).sum()


CALLS = {
    bert: lambda model: model(input_ids=IDS, labels=LABELS).loss,
    llama: lambda model: model(input_ids=IDS, labels=IDS).loss,
    wrapped_gpt2: lambda model: model(input_ids=IDS, labels=IDS).loss,
    t5: lambda model: model(input_ids=IDS, labels=IDS.flip(1)).loss,
    staged: stages_loss,
}


@pytest.mark.parametrize("make_model", CALLS)
def test_recomputation_changes_memory_alone(make_model):
    """Dropout is on, layers are called by position and by name, return tuples, and are handed a cache to fill."""

    def gradients(layers):
        """Gradients, and the numbers that the forward pass keeps for them."""
        torch.manual_seed(0)
        model = make_model().train()
        saved = []
        recompute(model, layers, find_blocks(model))
        torch.manual_seed(1)  # of dropout
        keep = lambda t: saved.append(t.numel()) or t  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            loss = CALLS[make_model](model)
        loss.backward()
        grads = {name: value.grad for name, value in model.named_parameters()}
        return {name: grad for name, grad in grads.items() if grad is not None}, sum(saved)

    plain, most = gradients(0)
    recomputed, least = gradients("all")
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    assert least < (0.6 if make_model is not staged else 1) * most


def test_recomputation_needs_blocks():
    with pytest.raises(BadInput, match="no `blocks`"):
        recompute(nn.Linear(2, 2), "all", [])
    assert recompute(nn.Linear(2, 2), 0, []) == 0
    net = Net(nn.Linear(2, 2), nn.Tanh())
    assert recompute(net, 9, find_blocks(net)) == 2


def test_recomputation_updates_batch_statistics_once():
    def trained(layers):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        model = nn.Module()
        first = nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh())
        model.blocks = nn.ModuleList([first, nn.Linear(8, 1)])
        recompute(model, layers, find_blocks(model))
        for step in range(3):
            draw = torch.Generator().manual_seed(step)
            out = torch.randn(16, 4, generator=draw, requires_grad=True)
            for block in model.blocks:
                out = block(out)
            out.square().sum().backward()
        gradients = {name: value.grad for name, value in model.named_parameters()}
        return dict(model.named_buffers()) | gradients

    plain = trained(0)
    recomputed = trained("all")
    assert plain["blocks.0.1.num_batches_tracked"] == 3
    assert same_tensors(plain, recomputed)


def test_a_filled_cache_and_layers_that_recompute_themselves_are_refused():
    model = llama()
    model.gradient_checkpointing_enable()
    assert recompute(model, 0, find_blocks(model)) == 0
    with pytest.raises(BadInput, match="recomputes its layers itself already"):
        recompute(model, "all", find_blocks(model))
    model = llama().train()
    past = model(input_ids=IDS, use_cache=True).past_key_values
    recompute(model, "all", find_blocks(model))
    with pytest.raises(BadInput, match="LlamaDecoderLayer .* reads keys and values from a cache"):
        model(input_ids=IDS, past_key_values=past)
    with (
        torch.no_grad()
    ):  # without gradients nothing is recomputed, and generating text has its cache
        assert model(input_ids=IDS, use_cache=True).past_key_values.get_seq_length() == 4


def test_tensors_by_name_go_by_position_where_torch_keeps_the_random_state_of_their_gpu(
    monkeypatch,
):
    calls = []
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    name = "lib.training.recomputation.recomputed"
    monkeypatch.setattr(name, lambda run, *args, **_: calls.append(args) or run(*args))
    recompute(layer, "all", [layer])
    assert torch.equal(layer(input=x), nn.functional.linear(x, layer.weight, layer.bias))
    assert calls == [(x,)]


LEARNER = """
import torch
import transformers
from tests.toy import Toy

class Learner(Toy):
    def model(self):
        sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=64, vocab_size=11, num_hidden_layers=2)
        return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))

    def count(self, batch):
        return {"loss": len(batch["ids"])}

    def loss(self, model, batch):
        return {"loss": model(input_ids=batch["ids"]).logits.square().sum()}, {}

    def example_batch(self, size, device):
        return {"ids": torch.ones(size, 128, dtype=torch.long, device=device)}

class Flat(Learner):
    layers = 0

    def model(self):
        layers = [torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 8)) for _ in range(self.layers)]
        return torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 8), *layers)

    def loss(self, model, batch):
        return {"loss": model(batch["ids"]).square().sum()}, {}

class InPlace(Flat):
    layers = 3

class Chosen(Learner):
    def blocks(self, model):
        return [model.bert.encoder.layer[0], model.bert.encoder.layer[0], model.bert.encoder]

class Foreign(Learner):
    def blocks(self, model):
        return [torch.nn.Linear(1, 1)]
"""


@pytest.fixture
def learner(tmp_path):
    (tmp_path / "learner.py").write_text(LEARNER)
    (tmp_path / "learner.yaml").write_text(
        "task: x\ntraining: {max_steps: 2, effective_batch: 32}\n"
    )

    def config(kind="Learner", **overrides):
        given = {"task": f"{tmp_path}/learner.py:{kind}", "training.precision": "fp32", **overrides}
        return load_config(tmp_path / "learner.yaml", given)

    return config


def test_a_plan_counts_found_layers_and_has_a_lower_peak_with_them(learner):
    plain = make(learner(**{"training.gradient_checkpointing": 0}), find_card("t4"))
    every = make(learner(**{"training.gradient_checkpointing": 9}), find_card("t4"))
    assert plain.layers == every.layers == 2
    assert plain.chosen.recomputed == 0
    assert every.chosen.recomputed == 2
    less, more = (plan.chosen.prediction for plan in (every, plain))
    assert less.by_category["activations"] < 0.7 * more.by_category["activations"]
    assert less.peak_bytes < more.peak_bytes
    assert make(learner("Flat"), find_card("t4")).layers == 0
    with pytest.raises(
        BadInput, match="gradient_checkpointing is 2, but this model has no `blocks`"
    ):
        make(learner("Flat", **{"training.gradient_checkpointing": 2}), find_card("t4"))


def test_layers_that_change_their_input_are_refused_where_asked_for(learner):
    """A second pass would read what the first one left."""
    config = learner("InPlace", **{"training.gradient_checkpointing": "all"})
    sentence = "A Sequential that is to be recomputed changes its input in place"
    with pytest.raises(BadInput, match=sentence):
        make(config, find_card("t4"))
    state = new_state(load_task(config), config)
    task = load_task(config)
    with pytest.raises(BadInput, match=sentence):
        task.loss(state.model, task.example_batch(2, state.device))


def test_a_task_names_its_layers_itself(learner):
    def model_of(kind="Learner", **overrides):
        config = learner(kind, **overrides)
        return new_state(load_task(config), config).model

    task = load_task(learner("Chosen"))
    model = task.model()
    assert checked_blocks(task, model) == [
        model.bert.encoder.layer[0],
        model.bert.encoder,
    ]  # each counts once
    modules = model_of("Chosen", **{"training.gradient_checkpointing": 1}).named_modules()
    assert [name for name, module in modules if "forward" in vars(module)] == [
        "bert.encoder.layer.0"
    ]
    with pytest.raises(
        BadInput, match="Foreign.blocks returned a Linear that is no module of the model"
    ):
        model_of("Foreign")
