"""The network: what sees what, what is encoded how often, and published parts of next to no size."""

import json

import pytest
import torch
from transformers import BlipConfig, BlipModel, RobertaConfig, RobertaModel, T5Config, T5ForConditionalGeneration

from lib.errors import BadInput
from lib.machine import published
from lib.task import load_config, load_task
from lib.training.sizes import saved_bytes
from tests.conftest import ROOT
from tests.workloads.vqa.conftest import load
from workloads.vqa import decoding, encoders, tokens


@pytest.fixture
def made(vqa):
    """A task, its model in evaluation mode, and a batch of six questions about three pictures."""
    task = vqa()
    samples = task.datasets()["train"]
    pictures = samples.pictures.tolist()
    chosen = [n for p in pictures[:1] + pictures[-1:] for n in range(len(samples)) if pictures[n] == p][:6]
    torch.manual_seed(0)
    model = task.model().eval()
    return task, model, task.collate([samples[n] for n in chosen], torch.Generator())


def changed(batch, **values):
    return {**batch, **values}


def test_a_picture_is_encoded_once_for_its_questions_with_the_same_result(made):
    _, model, batch = made
    seen = []
    model.image.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    with torch.no_grad():
        together = model(batch)
        alone = model(changed(batch, picture=torch.arange(len(batch["picture"]))))
    assert seen == [len(set(batch["picture"].tolist())), len(batch["picture"])] and seen[0] < seen[1]
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_answer_depends_on_the_own_picture_and_question_alone(made):
    _, model, batch = made
    with torch.no_grad():
        before = model(batch)
        other = batch["pixels"].clone()
        own = batch["picture"] == batch["picture"][-1]
        other[own] = 255 - other[own]
        after = model(changed(batch, pixels=other))
        question = batch["question"].clone()
        question[0, 0] += 1
        asked = model(changed(batch, question=question))
    differs = (before != after).flatten(1).any(1)
    assert differs.tolist() == own.tolist()
    assert (before != asked).flatten(1).any(1).tolist() == [True] + [False] * (len(own) - 1)


def test_padding_changes_nothing_and_no_token_sees_a_later_one(made):
    _, model, batch = made
    pad = torch.nn.functional.pad
    longer = changed(batch, question=pad(batch["question"], (0, 3), value=7), words=pad(batch["words"], (0, 3)))
    with torch.no_grad():
        before, after = model(batch), model(longer)
        target = batch["target"].clone()
        target[:, 4:] = 9
        earlier = model(changed(batch, target=target))
    assert torch.allclose(before, after, atol=1e-5)
    assert torch.allclose(before[:, :5], earlier[:, :5], atol=1e-5) and not torch.allclose(before, earlier, atol=1e-3)


def test_the_look_at_patches_is_a_share_of_each_and_follows_the_picture(made):
    _, model, batch = made
    with torch.no_grad():
        found = model.looks(batch)
        other = model.looks(changed(batch, pixels=255 - batch["pixels"]))
    assert found.shape == (len(batch["picture"]), 16) and torch.allclose(found.sum(1), torch.ones(len(found)))
    assert not torch.equal(found, other)


@pytest.mark.parametrize(("fusion", "layers"), [(0, 2), (1, 2), (3, 1)])
def test_unequal_numbers_of_layers_write_answers(vqa, fusion, layers):
    task = vqa({"workload.decoder.fusion_layers": fusion, "workload.decoder.layers": layers})
    model = task.model().eval()
    assert task.blocks(model)[:layers] == [*model.t5.decoder.block], "which are recomputed first"
    assert (len(model.t5.encoder.block), len(model.t5.decoder.block)) == (fusion, layers)
    memory, mask = model.encode(task.example_batch(2, torch.device("cpu")))
    with torch.no_grad():
        written = decoding.search(model, memory, mask, 2, 3)
    assert len(written) == 2 and written.shape[1] <= 3


# --- published parts ----------------------------------------------------------------------------------------------

ANSWERS = ["màu đỏ", "hình tròn", "bên trái"] * 3


def write_parts(home, tied=False):
    """Published weights of next to no size: pictures, questions as PhoBERT has them, answers of T5 1.1."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    config = BlipConfig(vision_config=vision, text_config={**sizes, "vocab_size": 20, "encoder_hidden_size": 4})
    BlipModel(config).save_pretrained(home / "blip")
    colours = {"image_mean": [0.4, 0.5, 0.5], "image_std": [0.2, 0.3, 0.3]}
    (home / "blip" / "preprocessor_config.json").write_text(json.dumps(colours))
    (home / "phobert").mkdir()
    (home / "phobert" / "vocab.txt").write_text("màu 9\nđ@@ 5\nỏ 5\ntròn 2\n", "utf-8")
    (home / "phobert" / "bpe.codes").write_text("m à 9\nmà u</w> 9\nt r 3\ntr ò 3\ntrò n</w> 3\n", "utf-8")
    config = RobertaConfig(vocab_size=9, max_position_embeddings=20, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(home / "phobert")
    own = tokens.trained(ANSWERS, 60)
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=own["first"] + 3, d_model=4, d_kv=2, d_ff=8, num_layers=2, num_heads=2,
                 feed_forward_proj="gated-gelu", decoder_start_token_id=0, tie_word_embeddings=tied)
    )  # fmt: skip
    if not tied:
        t5.lm_head.weight = torch.nn.Parameter(torch.randn_like(t5.lm_head.weight))
    t5.save_pretrained(home / "vit5")
    (home / "vit5" / "tokenizer.json").write_text(own["text"])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (home / "vit5" / "tokenizer_config.json").write_text(json.dumps(about))
    return {f"workload.{part}.weights": str(home / name) for part, name in
            (("image", "blip"), ("text", "phobert"), ("decoder", "vit5"))}  # fmt: skip


@pytest.fixture
def whole(tmp_path, drawn, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(drawn[0]))
    return load(tmp_path, write_parts(tmp_path))


def test_published_parts_are_taken_with_their_tokenizers_and_colours(whole, tmp_path):
    learned = whole.learned()
    model = whole.model()
    chosen = learned["encoders"]
    assert (chosen["image"]["mean"], chosen["image"]["deviation"]) == ([0.4, 0.5, 0.5], [0.2, 0.3, 0.3])
    names = [str(tmp_path / name) for name in ("blip", "phobert", "vit5")]
    assert [one["weights"] for one in chosen.values()] == names
    vision = BlipModel.from_pretrained(names[0]).vision_model
    t5 = T5ForConditionalGeneration.from_pretrained(names[2])
    own, theirs = (one.embeddings.patch_embedding.weight for one in (model.image.encoder, vision))
    rows = t5.config.vocab_size
    assert torch.equal(own, theirs) and torch.equal(model.t5.shared.weight[:rows], t5.shared.weight)
    assert len(model.t5.shared.weight) == rows + tokens.EXTRA
    assert torch.equal(model.t5.lm_head.weight[:rows], t5.lm_head.weight)
    assert not torch.equal(model.t5.lm_head.weight, model.t5.shared.weight)
    model.tie_weights()
    assert not torch.equal(model.t5.lm_head.weight, model.t5.shared.weight)
    assert len(model.t5.encoder.block) == 1 and len(model.t5.decoder.block) == 2
    batch = whole.collate([whole.datasets()["train"][n] for n in range(3)], torch.Generator())
    assert batch["question"][:, 0].tolist() == [0, 0, 0]  # PhoBERT's <s>
    assert torch.isfinite(sum(whole.loss(model, batch)[0].values()))


def test_a_run_that_resumes_builds_the_same_parts_without_their_weights(whole, tmp_path):
    learned, model = whole.learned(), whole.model()
    for name in ("blip", "phobert", "vit5"):
        (tmp_path / name).rename(tmp_path / f"gone-{name}")
    again = load(tmp_path, {f"workload.{p}.weights": w["weights"] for p, w in learned["encoders"].items()})
    again.take_learned(json.loads(json.dumps(learned)))
    again.published = json.loads(json.dumps(whole.published))
    other = again.model()
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (model, other)]
    assert shapes[0] == shapes[1]
    assert len(list(model.parameters())) == len(list(other.parameters()))


def test_a_plan_takes_the_usual_sizes_for_weights_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "_from_hub", lambda name, download=True: None)
    names = {"image": "Salesforce/blip-vqa-base", "text": "vinai/phobert-base", "decoder": "VietAI/vit5-base"}
    overrides = {f"workload.{part}.weights": name for part, name in names.items()}
    task = load(tmp_path, {**overrides, "workload.pictures.side": 384, "workload.decoder.fusion_layers": 3})
    with torch.device("meta"):
        model = task.model()
    assert 445e6 < sum(value.numel() for value in model.parameters()) < 455e6
    with pytest.raises(BadInput, match="side is 32, and the published encoder takes .* 384"), torch.device("meta"):
        load(tmp_path, overrides).model()


def test_what_the_size_for_kaggle_keeps_stays_within_its_20_gb(monkeypatch):
    monkeypatch.setattr(published, "_from_hub", lambda name, download=True: None)
    config = load_config(ROOT / "configs" / "vqa.yaml", {"training.max_steps": 100})
    whole, weights = saved_bytes(load_task(config), config)
    # weights, two moments and their average in fp32, and a checkpoint may be written while the last one is still there
    assert whole == pytest.approx(16 * 449e6, rel=0.01) and weights == pytest.approx(4 * 449e6, rel=0.01)
    kept = config.checkpoint
    assert (kept.keep_last + 1) * whole + (kept.keep_best + 2) * weights < 20e9


@pytest.mark.parametrize(
    "chosen",
    [None, {}, {"image": {"weights": ""}},
     {"image": {"weights": 1}, "text": {"weights": ""}, "decoder": {"weights": ""}},
     {"image": {"weights": "", "mean": [1]}, "text": {"weights": ""}, "decoder": {"weights": ""}},
     {"image": {"weights": ""}, "text": {"weights": "", "run": [1, 1, 1]}, "decoder": {"weights": ""}}],
)  # fmt: skip
def test_parts_that_somebody_else_names_are_checked(chosen):
    with pytest.raises(BadInput, match="names no encoders"):
        encoders.check(chosen)
