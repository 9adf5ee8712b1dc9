"""The task as the trainer sees it, its encoder, its scores beside the counts, and new judgments."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from lib.errors import BadInput
from lib.task import find_task, load_config
from lib.training.evaluation import EvaluationLoader
from tests.workloads.legal.conftest import CONFIG, load
from trainbook import Judged, Supervised
from trainbook.launch import checks
from trainbook.supervised.targets import class_counts
from workloads.legal import COUNTINGS, counting, model, product
from workloads.legal.counting import macro_f1
from workloads.legal.model import Network, input_of
from workloads.legal.settings import POSITIONS, Encoder


def batch_of(task):
    samples = task.datasets()["train"]
    return task.collate([samples[number] for number in range(8)], torch.Generator())


def test_the_model_reads_no_data_and_the_contract_is_kept(tmp_path, legal):
    (tmp_path / "legal.yaml").write_text(CONFIG)
    task = find_task("legal")(load_config(tmp_path / "legal.yaml"))
    batch = task.example_batch(3, torch.device("cpu"))
    assert torch.isfinite(task.loss(task.model(), batch)[0]["loss"])
    assert batch["tokens"].shape == (3, 48)
    assert batch["positions"].shape == (3, POSITIONS)
    assert not {"corpus", "_dealt"} & {*vars(task)}
    task = legal({"training.micro_batch": 2, "training.effective_batch": 4})
    assert checks.examine(task, task.config) == []


def test_sentences_are_weighted_by_the_root_of_their_roles_rarity(legal):
    task = legal()
    counts = class_counts(task, "train")
    weights = np.array(task.learned()["class_weights"])
    assert (weights * counts).sum() == pytest.approx(counts.sum())
    products = (weights * counts**0.5)[counts > 0]
    assert products == pytest.approx(products[0])


def test_what_was_learned_is_taken_back_and_what_others_learned_is_checked(
    legal, tmp_path, learned
):
    task = legal()
    other = load(tmp_path)
    other.take_learned(json.loads(json.dumps(learned)))
    want = batch_of(task)
    got = batch_of(other)
    assert other.learned() == learned
    assert all(torch.equal(want[name], got[name]) for name in want)


NO_TOKENIZER = {"text": "{}", "cls": 0, "sep": 0, "pad": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": None, "counts": 3}, "lacks encoder, counts"),
        ({"classes": ["a"]}, "names 1 roles, and the network has 16"),
        ({"classes": [["a"], ["b"]], "class_weights": [1, 1]}, "lacks classes"),
        ({"tokenizer": NO_TOKENIZER}, "kept with the weights cannot be read"),
    ],
)
def test_learned_values_of_another_kind_are_refused(tmp_path, learned, changes, message):
    task = load(tmp_path)
    with pytest.raises(BadInput, match=message):
        task.take_learned({**learned, **changes})
        task.datasets()


def test_the_fingerprint_is_that_of_the_sentences_and_of_their_division(tmp_path):
    hashes = [
        load(tmp_path, more).fingerprint()
        for more in ({}, {}, {"workload.split.partition": 1}, {"workload.generator.documents": 13})
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    with pytest.raises(BadInput, match=r"workload\.classes"):
        load(tmp_path, {"workload.classes": 5}).datasets()


def test_validation_documents_are_counted_and_scored_by_counts_without_them(legal):
    task = legal()
    validation = task.documents["validation"]
    held_out = task.stack.held_out
    assert {*held_out} == {one.name for one in validation}
    seen = np.concatenate([task.stack.scores(one) for one in validation])
    counted = task.counted("validation")
    assert counted.shape == seen.shape
    assert not np.allclose(counted, seen, atol=0.1)
    assert task.stack.sentences == sum(map(len, [*task.documents["train"], *validation]))


TEXT = "The appellant was employed as a clerk.\nIt was contended that <b>wages</b> & notice.\nThe appeal is allowed.\n"


def test_every_sentence_has_a_role_and_probabilities_as_json_lines(legal, tmp_path):
    new = tmp_path / "new"
    out = tmp_path / "out"
    (new / "deep").mkdir(parents=True)
    (new / "one.txt").write_text(TEXT)
    (new / "deep" / "two.txt").write_text(TEXT * 3)
    task = legal({"training.micro_batch": 2})
    answers = task.predict([task.model().eval()], new, out)
    assert {name: len(rows) for name, rows in answers.items()} == {"one": 3, "deep/two": 9}
    rows = [json.loads(line) for line in (out / "deep" / "two.jsonl").read_text().splitlines()]
    assert rows == answers["deep/two"]
    assert [row["sentence"] for row in rows] == list(range(1, 10))
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-3)
        assert row["probability"] == max(row["probabilities"].values())
        assert row["probability"] == row["probabilities"][row["role"]]


def test_a_sentences_answer_is_its_own_in_any_batch_and_that_of_several_models_their_mean(
    legal, tmp_path
):
    (tmp_path / "new.txt").write_text(TEXT)
    task = legal()
    torch.manual_seed(0)  # a product with the counts is not between its parts for any weights
    one = task.model().eval()
    other = task.model().eval()
    one.weight.fill_(1.0)
    other.weight.fill_(0.0)
    new = tmp_path / "new.txt"

    def facts(*models):
        rows = task.predict([*models], new, None)["new"]
        return np.array([row["probabilities"]["Facts"] for row in rows])

    alone = facts(one)
    pair = np.stack([alone, facts(other)])
    both = facts(one, other)
    assert (pair.min(0) - 1e-4 <= both).all()
    assert (both <= pair.max(0) + 1e-4).all()
    task.config = legal({"training.micro_batch": 1}).config
    assert (facts(one) == alone).all()


class Drawn(Supervised):
    """Twelve documents of thirty sentences, the sentence's number says of which it is."""

    metrics = ("macro_f1",)

    def group(self, sample):
        return sample

    def _groups(self, part):
        return [str(number // 30) for number in range(360)]


def drawn(*, knows, seed=0):
    """A task, counts that know a role, a network that knows as much as `knows` says, and the roles."""
    task = Drawn.__new__(Drawn)
    noise = np.random.default_rng(seed)
    truth = np.arange(360) % 4
    known = np.eye(4)[truth]
    counts = 1.5 * known + noise.normal(size=(360, 4))
    network = knows * known + noise.normal(size=(360, 4))
    return task, counts, log_softmax(network, -1), truth


@pytest.mark.parametrize("usual", [0.0, product.PUBLISHED_WEIGHT])
def test_a_network_counts_where_macro_f1_surely_gains_and_never_where_it_knows_nothing(usual):
    knows, best = product.chosen_weight(*drawn(knows=2.0), usual)
    nothing, least = product.chosen_weight(*drawn(knows=0.0), usual)
    misleads, _ = product.chosen_weight(*drawn(knows=-1.0), usual)
    assert knows > 0
    assert nothing == misleads == 0
    assert least < best < 1, "means of probabilities of one role of several"


def test_a_gain_that_macro_f1_cannot_tell_counts_for_a_published_encoder_alone():
    """It makes the right roles surely more probable."""
    given = drawn(knows=0.7, seed=0)
    assert product.chosen_weight(*given, 0.0)[0] == 0
    assert product.chosen_weight(*given, product.PUBLISHED_WEIGHT)[0] == product.PUBLISHED_WEIGHT


def test_an_answer_is_hardly_ever_further_below_counting_than_it_may_be():
    """Of networks from scratch that know nothing to something, by macro F1 on twenty thousand sentences."""
    below = []
    for seed in range(8):
        knows = seed % 4 / 2
        given = drawn(knows=knows, seed=seed)
        weight, _ = product.chosen_weight(*given, 0.0)
        noise = np.random.default_rng(seed + 1000)
        truth = np.arange(20_000) % 4
        known = np.eye(4)[truth]
        counts = 1.5 * known + noise.normal(size=(20_000, 4))
        network = log_softmax(knows * known + noise.normal(size=(20_000, 4)), -1)
        below.append(macro_f1(counts, truth) - macro_f1(counts + weight * network, truth))
    assert max(below) <= 0.003


@pytest.mark.parametrize("best", [0, 3, 4])
def test_the_strongest_counting_is_the_best_on_documents_that_it_did_not_see(legal, best):
    task = legal()
    gains = np.array([-0.1, -0.1, -0.1, -0.1, 0.0])
    gains[best] += 0.2
    arrays = {**task.stack.arrays, counting._GAINS: gains}
    task.stack = replace(task.stack, arrays=arrays)
    rows = task.baselines()
    assert task._strongest(rows) == COUNTINGS[best] == [*rows][best]
    test = task.documents["test"]
    base = np.concatenate([task.stack.base(document) for document in test]) + task.stack.shift
    places = task.parts["test"].samples.places
    assert (base.argmax(1)[places] == rows[COUNTINGS[best]]).all()
    assert task.baseline()["macro_f1"] == task.figures(task.truth("test"), base)["macro_f1"]


def test_offsets_stay_unless_documents_show_surely_that_another_counting_is_better():
    noise = np.random.default_rng(0)
    document = np.arange(400) // 10
    truth = noise.integers(3, size=400)
    right = np.eye(3)[truth]
    near = right + noise.normal(size=(400, 3))
    flipped = near.copy()
    flipped[:3] = -right[:3]  # worse by a hair, in one document
    found = dict.fromkeys(product.METHODS, noise.normal(size=(400, 3)))
    for with_offsets, without, best in (
        (flipped, near, product.SHIFTED),
        (noise.normal(size=(400, 3)), near, product.PRODUCT),
    ):
        found |= {product.SHIFTED: with_offsets, product.PRODUCT: without}
        gains = counting._sure_gains(found, truth, document)
        assert counting._best(gains) == best


def scores_of(task, part, sure):
    """(sentences, classes) log-probabilities that know the right role as surely as `sure` says; 0: chance."""
    truth = task.truth(part)
    noise = np.random.default_rng(0).normal(size=(len(truth), len(task.names)))
    noise[np.arange(len(truth)), truth] += sure
    return noise - np.log(np.exp(noise).sum(1, keepdims=True))


class Knows(torch.nn.Module):
    """Returns known scores of a part, whatever the sentence: of those that come together by their length."""

    def __init__(self, task, part, sure, model=None):
        super().__init__()
        self.weight, self.power = (
            (model.weight, model.power) if model else (torch.tensor(0.5), torch.tensor(1.0))
        )
        scores = torch.from_numpy(scores_of(task, part, sure))[task.parts[part].samples.places]
        self.rest = scores, EvaluationLoader(task, task.datasets()[part], 7, torch.device("cpu"))

    def forward(self, batch):
        scores, loader = self.rest
        self.rest = scores[len(batch["labels"]) :], loader
        return scores[: len(batch["labels"])].float()

    def evaluated(self, task):
        return task.evaluate(self, self.rest[1])


def test_weight_and_power_are_chosen_on_validation_and_used_on_the_test_and_weight_0_is_the_baseline(
    tmp_path,
):
    many = {"workload.generator.documents": 36, "workload.split.validation": 0.45}
    task = load(tmp_path, many)  # three documents are too few to be sure
    task.learned()
    model = Knows(task, "validation", 9)
    assert (np.diff(task.datasets()["validation"].lengths) >= 0).all()
    scores = model.evaluated(task)
    truth = task.truth("validation")
    weight = float(model.weight)
    power = float(model.power)
    counted = task.figures(truth, task.counted("validation") + task.stack.shift)
    assert weight == scores["network_weight"] > 0
    assert scores["accuracy"] > counted["accuracy"]
    assert (
        scores["network_macro_f1"]
        == task.figures(truth, scores_of(task, "validation", 9))["macro_f1"]
        > 0.5
    )
    Knows(task, "test", 0, model).evaluated(task)
    assert float(model.weight) == weight
    assert float(model.power) == power
    model.weight.fill_(0.0)
    baseline = task.baseline()
    judged = Knows(task, "test", 3, model).evaluated(task)
    judged.pop("loss")
    assert baseline.keys() == judged.keys()
    assert {"macro_f1", "f1_Facts", "probability"} <= baseline.keys()
    assert baseline["macro_f1"] == judged["macro_f1"]
    *_, answer = task._tested.values()
    counts = task.counted("test") + task.stack.shift
    shares = torch.from_numpy(power * counts).softmax(-1).numpy()
    places = task.parts["test"].samples.places
    assert task._promised.shares == pytest.approx(shares[places])
    assert (task._promised.guess == answer.guess).all()


def test_a_gain_counts_one_set_of_roles_of_both_methods_in_each_draw(legal):
    """A role of one document alone is a mistake of the network elsewhere, and counts in draws without it, too."""
    task = legal()
    place, document = map(
        np.array, zip(*((s.number, s.document) for s in task.parts["test"].samples), strict=True)
    )
    is_first = document == document[0]
    every = np.arange(len(place))
    true = np.where(is_first, np.minimum(place, 2), place % 2)
    guesses = (
        np.where((place == 4) & ~is_first, wrong, true) for wrong in (1, 2)
    )  # where the role is 0
    rows = {
        name: Judged(true, guess, sample=every)
        for name, guess in zip(("counts", "both"), guesses, strict=True)
    }
    gain = task._compared(rows, "counts")[1]["both"][0]
    assert gain.low > -0.05, "by a mean over 3 roles beside one over 2 it is -0.30"
    assert gain.high > 0, "by a mean over 3 roles beside one over 2 it is -0.30"


TINY = {"workload.encoder.weights": "ada/tinybert"}


def test_a_mounted_model_is_found_under_both_its_names_or_none_which_is_said(mounted, capsys):
    for name in ("ada/tinybert", "law-ai/TinyBERT", str(mounted)):
        chosen = model.choose(Encoder(weights=name))
        assert chosen["weights"] in (name, "tinybert")
        assert chosen["options"] == {"attention_probs_dropout_prob": 0.0}
    chosen = model.choose(Encoder(weights="law-ai/InLegalBERT"))
    assert chosen["weights"] == ""
    assert "begins with an encoder from scratch" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "layers"), [(False, 1), (True, 2)])
def test_what_is_frozen_is_not_trained_and_the_rest_is(tmp_path, mounted, words, layers):
    frozen = {"workload.encoder.freeze_words": words, "workload.encoder.freeze_layers": layers}
    task = load(tmp_path, {**TINY, **frozen})
    named = dict(task.model().encoder.named_parameters())
    still = {name for name, p in named.items() if not p.requires_grad}
    below = {f"encoder.layer.{n}." for n in range(layers)}
    wanted = {
        n
        for n in named
        if any(map(n.startswith, below)) or (layers and n.startswith("embeddings."))
    }
    assert still == wanted | ({"embeddings.word_embeddings.weight"} if words else set())


def test_more_frozen_layers_than_there_are_and_more_tokens_than_positions_are_refused(
    tmp_path, mounted
):
    with pytest.raises(BadInput, match="freeze_layers is 3, and the encoder has 2 layers"):
        load(tmp_path, {**TINY, "workload.encoder.freeze_layers": 3}).model()
    sizes = {**SIZES, "max_position_embeddings": 34, "pad_token_id": 1}
    RobertaModel(RobertaConfig(**sizes)).save_pretrained(mounted)
    with pytest.raises(BadInput, match="length is 48, and the encoder has 32 positions"):
        load(tmp_path, TINY).model()
    task = load(tmp_path, {**TINY, "workload.context.length": 32})
    network = task.model()
    batch = task.example_batch(1, torch.device("cpu"))
    assert torch.isfinite(network({**batch, "tokens": batch["tokens"] + 5})).all()


def test_layers_have_lower_rates_the_further_they_are_from_the_head(tmp_path, mounted):
    task = load(tmp_path, {**TINY, "workload.rates.layer_decay": 0.5, "workload.rates.head": 9.0})
    rates = {
        name: group["lr"]
        for group in task.parameter_groups(task.model())
        for name in group["names"]
    }
    layers = [f"encoder.encoder.layer.{n}.output.dense.weight" for n in (1, 0)]
    names = ["output.*", *layers, "encoder.embeddings.word_embeddings.weight"]
    assert [rates[name] for name in names] == [9.0, 1.0, 0.5, 0.25]


SIZES = {
    "vocab_size": 20,
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def test_padding_changes_nothing_and_place_and_category_count(tmp_path):
    def network(attention="sdpa"):
        torch.manual_seed(0)
        bert = BertModel(BertConfig(**SIZES, attn_implementation=attention))
        return Network(bert, 3).eval()

    short, long = (
        load(tmp_path, {"workload.context.length": length}).example_batch(2, torch.device("cpu"))
        for length in (8, 9)
    )
    long["mask"][:, 8:], long["positions"] = 0, short["positions"]
    for attention in ("sdpa", "eager"):  # which take different masks
        assert torch.allclose(network()(short), network(attention)(long), atol=1e-6)
    for name in ("positions", "category"):
        assert not torch.equal(network()(short), network()({**short, name: short[name] + 1}))


CLS = 1
SEP = 2


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    assert input_of([10, 11], 8, CLS, SEP) == [CLS, 10, 11, SEP]
    assert input_of([], 8, CLS, SEP) == [
        CLS,
        SEP,
    ]
    long = input_of(list(range(100, 20_100)), 12, CLS, SEP)
    assert long == [CLS, 100, 101, 102, 103, 104, 105, 106, 20_097, 20_098, 20_099, SEP]
