"""The network, what sees what, published parts of next to no size; tokens, targets and the loss of each part."""

import json
import shutil

import pytest
import torch
import transformers
from transformers import (
    BlipConfig,
    BlipModel,
    PhobertTokenizer,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lib.errors import BadInput
from lib.machine import published
from lib.task import load_config, load_task
from lib.training.state import saved_bytes
from tests.conftest import ROOT
from tests.workloads.vqa.conftest import load
from tests.workloads.vqa.files import record
from workloads.vqa import model as network
from workloads.vqa import tokens
from workloads.vqa.tokens import ANSWER, FORMAT, REASONING, Tokens


@pytest.fixture
def made(vqa):
    """A task, its model in evaluation mode, and a batch of six questions about three pictures."""
    task = vqa()
    samples = task.datasets()["train"]
    pictures = samples.samples.pictures.tolist()
    first = [number for number, picture in enumerate(pictures) if picture == pictures[0]]
    last = [number for number, picture in enumerate(pictures) if picture == pictures[-1]]
    chosen = [*first, *last][:6]
    torch.manual_seed(0)
    model = task.model().eval()
    return task, model, task.collate([samples[n] for n in chosen], torch.Generator())


def test_a_picture_is_encoded_once_and_an_answer_depends_on_its_own_picture_and_question_alone(
    made,
):
    _, model, batch = made
    seen = []
    own = batch["picture"] == batch["picture"][-1]
    model.image.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    pixels, question, target = (batch[name].clone() for name in ("pixels", "question", "labels"))
    pixels[own] = 255 - pixels[own]
    question[0, 0] += 1
    target[:, 4:] = 9
    pad = torch.nn.functional.pad
    longer = pad(batch["question"], (0, 3), value=7)

    def scores(**changes):
        return model({**batch, **changes})

    with torch.no_grad():
        before = scores()
        alone = scores(picture=torch.arange(len(own)))
        padded = scores(question=longer, words=pad(batch["words"], (0, 3)))
        earlier = scores(labels=target)
        shown = scores(pixels=pixels)
        asked = scores(question=question)
    assert seen[:2] == [len(set(batch["picture"].tolist())), len(own)]
    assert seen[0] < seen[1]
    assert torch.allclose(before, alone, atol=1e-5)
    assert torch.allclose(before, padded, atol=1e-5)
    assert torch.allclose(before[:, :5], earlier[:, :5], atol=1e-5)
    assert not torch.allclose(before, earlier, atol=1e-3)
    assert (before != shown).flatten(1).any(1).tolist() == own.tolist()
    assert (before != asked).flatten(1).any(1).tolist() == [True] + [False] * (len(own) - 1)


def write_parts(home):
    """Published weights of next to no size: pictures, questions as PhoBERT has them, answers of T5 1.1."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    config = BlipConfig(
        vision_config=vision, text_config={**sizes, "vocab_size": 20, "encoder_hidden_size": 4}
    )
    BlipModel(config).save_pretrained(home / "blip")
    colours = {"image_mean": [0.4, 0.5, 0.5], "image_std": [0.2, 0.3, 0.3]}
    (home / "blip" / "preprocessor_config.json").write_text(json.dumps(colours))
    (home / "phobert").mkdir()
    (home / "phobert" / "vocab.txt").write_text("màu 9\nđ@@ 5\nỏ 5\ntròn 2\n", "utf-8")
    (home / "phobert" / "bpe.codes").write_text(
        "m à 9\nmà u</w> 9\nt r 3\ntr ò 3\ntrò n</w> 3\n", "utf-8"
    )
    config = RobertaConfig(vocab_size=9, max_position_embeddings=20, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(home / "phobert")
    own = tokens.trained(["màu đỏ", "hình tròn", "bên trái"] * 3, 60)
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=own["first"] + 3, d_model=4, d_kv=2, d_ff=8, num_layers=2, num_heads=2,
                 feed_forward_proj="gated-gelu", decoder_start_token_id=0, tie_word_embeddings=False)
    )  # fmt: skip
    t5.lm_head.weight = torch.nn.Parameter(torch.randn_like(t5.lm_head.weight))
    t5.save_pretrained(home / "vit5")
    config = json.loads((home / "vit5" / "config.json").read_text())
    (home / "vit5" / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": False})
    )  # as published
    (home / "vit5" / "tokenizer.json").write_text(own["text"])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (home / "vit5" / "tokenizer_config.json").write_text(json.dumps(about))
    parts = {"image": "blip", "text": "phobert", "decoder": "vit5"}
    return {f"workload.{part}.weights": str(home / name) for part, name in parts.items()}


def test_published_parts_are_taken_whole_and_a_resumed_run_needs_no_weights(
    tmp_path, drawn, monkeypatch
):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(drawn[0]))
    whole = load(tmp_path, write_parts(tmp_path))
    learned = whole.learned()
    model = whole.model()
    chosen = learned["encoders"]
    assert chosen["image"]["mean"] == [0.4, 0.5, 0.5]
    assert chosen["image"]["deviation"] == [0.2, 0.3, 0.3]
    names = [str(tmp_path / name) for name in ("blip", "phobert", "vit5")]
    assert [chosen[part]["weights"] for part in ("image", "text", "decoder")] == names
    vision = BlipModel.from_pretrained(names[0]).vision_model
    t5 = T5ForConditionalGeneration.from_pretrained(names[2])
    own, theirs = (one.embeddings.patch_embedding.weight for one in (model.image.encoder, vision))
    rows = t5.config.vocab_size
    assert torch.equal(own, theirs)
    assert torch.equal(model.t5.shared.weight[:rows], t5.shared.weight)
    assert len(model.t5.shared.weight) == rows + tokens.EXTRA
    model.tie_weights()
    assert torch.equal(model.t5.lm_head.weight[:rows], t5.lm_head.weight)
    assert not torch.equal(model.t5.lm_head.weight, model.t5.shared.weight)
    assert len(model.t5.encoder.block) == 1
    assert len(model.t5.decoder.block) == 2
    batch = whole.collate([whole.datasets()["train"][n] for n in range(3)], torch.Generator())
    assert batch["question"][:, 0].tolist() == [0, 0, 0]  # PhoBERT's <s>
    assert torch.isfinite(sum(whole.loss(model, batch)[0].values()))
    with pytest.raises(BadInput, match="fusion_layers is 3; the published encoder has 2"):
        load(
            tmp_path, {"workload.decoder.weights": names[2], "workload.decoder.fusion_layers": 3}
        ).model()
    for name in names:
        shutil.move(name, f"{name}-gone")
    again = load(
        tmp_path, {f"workload.{part}.weights": one["weights"] for part, one in chosen.items()}
    )
    again.take_learned(json.loads(json.dumps(learned)))
    again.published = json.loads(json.dumps(whole.published))
    shapes = [
        {name: value.shape for name, value in one.state_dict().items()}
        for one in (model, again.model())
    ]
    assert shapes[0] == shapes[1]
    for wrong in (
        None,
        {},
        {"image": {"weights": ""}},
        {**chosen, "image": {"weights": 1}},
        {**chosen, "text": {}},
    ):
        with pytest.raises(BadInput, match="lacks encoders"):
            again.take_learned({**learned, "encoders": wrong})


def test_what_the_size_for_kaggle_keeps_stays_within_its_20_gb_where_the_weights_are_not_there(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(published, "_from_hub", lambda name, download=True: None)
    config = load_config(ROOT / "configs" / "vqa.yaml", {"training.max_steps": 100})
    whole, weights = saved_bytes(load_task(config), config)
    # weights, two moments and their average in fp32, and a checkpoint may be written while the last one is still there
    assert whole == pytest.approx(16 * 449e6, rel=0.01)
    assert weights == pytest.approx(4 * 449e6, rel=0.01)
    kept = config.checkpoint
    assert (kept.keep_last + 1) * whole + (kept.keep_best + 2) * weights < 20e9
    with (
        pytest.raises(BadInput, match="side is 32, and the published encoder takes .* 384"),
        torch.device("meta"),
    ):
        load(tmp_path, {"workload.image.weights": "Salesforce/blip-vqa-base"}).model()


def test_phoberts_pieces_are_those_of_transformers(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "xe 9\nx@@ 9\ne 9\nmàu 9\ntr@@ 3\nòn 4\nđ@@ 4\nxe_đạp 2\n", "utf-8"
    )
    merges = "x e</w> 9\nm à 9\nmà u</w> 9\nò n</w> 5\nt r 4\nx e 3\nxe _ 3\nđ ạ 3\nđạ p</w> 3\nxe_ đạp</w> 3\n"
    (tmp_path / "bpe.codes").write_text(merges, "utf-8")
    theirs = PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    ours = Tokens(tokens.published(tmp_path, False))
    for text in ("xe màu tròn", "xe_đạp đ x e", "xex màux 字 trò", ""):
        assert ours.questions([text], 40)[0] == theirs(text)["input_ids"], text
    assert ours.pad == theirs.pad_token_id
    assert ours.first == len(theirs)
    for broken in (b"one\n", b"\xff"):
        (tmp_path / "bpe.codes").write_bytes(broken)
        with pytest.raises(BadInput, match="The tokenizer in .* cannot be read"):
            tokens.published(tmp_path, False)


@pytest.mark.parametrize("mean", [[0.4, 0.5], [0.4, 0.5, "x"], 0.5, None])
def test_colours_that_are_not_three_numbers_are_halves(tmp_path, mean):
    parts = write_parts(tmp_path)
    (tmp_path / "blip" / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": mean, "image_std": [0.2] * 3})
    )
    chosen = network.choose(load(tmp_path, parts).settings)["image"]
    assert chosen["mean"] == ([0.5] * 3)
    assert chosen["deviation"] == ([0.5] * 3)


@pytest.mark.parametrize("kind", ["MT5", "UMT5"])
def test_decoders_whose_configuration_says_nothing_of_ties_are_taken(tmp_path, vqa, kind):
    parts = write_parts(tmp_path)
    sizes = {"vocab_size": 60, "d_model": 4, "d_kv": 2, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes, decoder_start_token_id=0)
    getattr(transformers, f"{kind}ForConditionalGeneration")(config).save_pretrained(
        tmp_path / "vit5"
    )
    task = vqa({"workload.decoder.weights": parts["workload.decoder.weights"]})
    for decoder, is_tied in (({"is_tied": False}, False), ({}, True)):
        chosen = {"image": {"weights": ""}, "text": {"weights": ""}}
        chosen["decoder"] = {"weights": parts["workload.decoder.weights"], **decoder}
        assert network.build(task, task.settings, chosen, 60).is_tied == is_tied


def test_a_target_has_its_tags_around_answer_type_and_reasoning_which_alone_is_cut():
    texts = ["màu đỏ", "màu đỏ tươi", "màu đen", "vì nó tròn"] * 3
    words = Tokens(tokens.trained(texts, 100), ["DESCRIPTIVE", "OBJECT"])

    def target(length=40, **more):
        return words.targets([record(1, **more)], length)[0]

    made, terms = target(answer="màu đỏ", kind="OBJECT", reasoning="vì nó tròn")
    answer, reasoning = words.numbers(["màu đỏ", "vì nó tròn"])
    wanted = [
        words.answer,
        *answer,
        words.answer_end,
        words.reasoning,
        words.kinds["OBJECT"],
        *reasoning,
    ]
    assert made == [*wanted, words.reasoning_end, words.end]
    of_answer = [FORMAT, *[ANSWER] * (len(answer) + 1)]
    of_reasoning = [FORMAT, *[REASONING] * (len(reasoning) + 1)]
    assert terms == [*of_answer, *of_reasoning, FORMAT, FORMAT]
    tagged, _ = target(answer="<answer> đỏ </s>")
    assert tagged.count(words.answer) == tagged.count(words.end) == 1, "a tag in a text is text"
    long, _ = target(length=12, answer="màu đỏ", reasoning="vì nó tròn " * 9)
    assert len(long) == 12
    assert long[-2:] == [words.reasoning_end, words.end]
    with pytest.raises(
        BadInput, match=r"row 1: the answer takes \d+ tokens, and workload.decoder.length 8 has"
    ):
        target(length=8, answer="màu đỏ " * 9)


def test_each_term_is_the_sum_over_its_own_tokens_and_pads_count_nowhere(made):
    task, model, batch = made
    with torch.no_grad():
        whole = task.loss(model, batch)[0]
        scores = model(batch).transpose(1, 2).log_softmax(1)
    for number, name in enumerate(("format", "answer", "reasoning"), 1):
        rows, places = torch.where(batch["part"] == number)
        wanted = -scores[rows, batch["labels"][rows, places], places].sum()
        assert float(whole[name]) == pytest.approx(float(wanted), rel=1e-4)
        assert task.count(batch)[name] == len(rows) > 0
    assert ((batch["part"] == 0) == (batch["labels"] == -100)).all()
    assert (batch["part"] == 0).any()
