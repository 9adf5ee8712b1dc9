"""A new tree beside the corpus of training, which entities compete for a name, and probabilities of answers."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.conftest import joined_with, moved, pieces_of, words_of
from tests.workloads.graphmer.test_evaluation import evaluated
from workloads.codegraph.graph import build as build_graph
from workloads.graphmer.corpus import cut
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.predicting.references import Asking, Choices, calibration_error, fit, weights_of
from workloads.graphmer.settings import COMBINED, ENCODER, OF_REFERENCES


def facts(corpus, triples):
    return {
        (
            corpus.entities[corpus.head[window]],
            corpus.relations[corpus.relation[triple]],
            corpus.entities[corpus.tail[triple]],
            corpus.types[corpus.entity_type[corpus.tail[triple]]],
            corpus.files[corpus.window_file[window]].removeprefix("<tree>/"),
        )
        for triple, window in zip(triples, corpus.window_of[triples], strict=True)
    }


def facts_of(graph):
    return {(*t.key, graph.entities[t.tail].type, t.file) for t in graph.triples}


def test_facts_and_texts_of_both_are_in_the_joined_corpus(fitted, new_tree):
    task, trained = fitted[0], fitted[0].data.corpus
    joined, graph = joined_with(task, new_tree), build_graph(new_tree)
    corpus = joined.data.corpus
    assert facts(corpus, joined.triples) == {fact for fact in facts_of(graph) if fact[1] != "catches"}
    assert "catches" not in trained.relations
    own = np.arange(len(trained.relation))
    assert facts(corpus, own) == facts(trained, own)
    for triple in joined.triples[corpus.relation[joined.triples] == corpus.relations.index("calls")]:
        assert corpus.word_list[corpus.name[corpus.tail[triple]]] in words_of(corpus, corpus.window_of[triple])
    inside = {corpus.entities[number] for number in np.flatnonzero(joined.in_tree)}
    assert {"shop.doors.Door", "shop.main.visit", "file::shop/main.py"} <= inside
    assert not inside & set(trained.entities) and not any(name.startswith("builtins.") for name in inside)


def test_tables_of_training_stay_and_what_is_new_has_no_vector_of_its_own(fitted, new_tree):
    task = fitted[0]
    data, number = joined_with(task, new_tree).data, len(task.data.corpus.entities)
    assert np.array_equal(data.table.vector[:number], task.data.table.vector) and not data.table.vector[number:].any()
    kinds = task.data.collator.layout.kind_before
    assert np.array_equal(data.collator.layout.kind_before[: len(kinds)], kinds)
    old, new = (d.table.of(np.arange(number))["pieces"] for d in (task.data, data))
    assert np.array_equal(old, new)
    fresh, _ = cut(data.corpus.tokenizer.tobytes().decode(), ["open_slowly", "return"])
    words = [data.corpus.word_index(word) for word in ("open_slowly", "return")]
    assert pieces_of(data.corpus, words) == fresh.tolist() and max(fresh) < 400


def test_a_module_that_training_had_counts_as_the_tree_has_it_now(fitted, tmp_path):
    """A tree that was trained on is not asked with its own answers."""
    task, trained = fitted[0], fitted[0].data.corpus
    train = next(f for f in trained.files if f.startswith("house") and trained.split[_window(trained, f)] == 0)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / train).write_text("def fresh():\n    return len('a')\n")
    joined = joined_with(task, tmp_path / "again")
    corpus = joined.data.corpus
    own = np.flatnonzero(corpus.window_file == trained.files.index(train))
    assert len(own) and not np.isin(own, np.flatnonzero(corpus.split == 0)).any()
    assert np.isin(joined.triples, corpus.triples_of("train")).all()
    module = train.removesuffix(".py")
    gone = corpus.entities.index(f"{module}.House{module.removeprefix('house')}")
    assert corpus.entity_file[gone] == -1 and corpus.entity_file[corpus.entities.index(f"{module}.fresh")] >= 0


def _window(corpus, file):
    return int(np.flatnonzero(corpus.window_file == corpus.files.index(file))[0])


def test_what_training_never_saw_a_relation_or_type_of_is_left_out(fitted, new_tree):
    graph = build_graph(new_tree)
    triples = [dataclasses.replace(t, relation="odd") if t.relation == "raises" else t for t in graph.triples]
    entities = {n: dataclasses.replace(e, type="Odd") if e.type == "Class" else e for n, e in graph.entities.items()}
    joined = joined_with(fitted[0], new_tree, triples=triples, entities=entities)
    odd = dataclasses.replace(graph, triples=triples, entities=entities)
    want = {f for f in facts_of(odd) if f[1] not in ("odd", "catches") and f[3] != "Odd"}
    want = {f for f in want if f[0] not in ("shop.doors.Door", "shop.doors.Gate", "shop.main.Room")}
    assert facts(joined.data.corpus, joined.triples) == want and "shop.doors.Door" not in joined.data.corpus.entities


def batches(asking, wanted, answering):
    with torch.inference_mode():
        return list(asking.ask(wanted, answering))


def test_a_builtins_method_is_an_answer_though_no_other_fact_names_it(fitted, tmp_path):
    (tmp_path / "once").mkdir()
    (tmp_path / "once" / "a.py").write_text("def f():\n    return 'a'.zfill(3)\n")
    joined = joined_with(fitted[0], tmp_path / "once")
    asking = Asking(joined.data, leave_out=True)
    (part,) = batches(asking, asking.known(joined.triples), Answering(joined.data, fitted[1]))
    assert joined.data.corpus.entities[part.entity[part.gold[0]]] == "builtins.str.zfill"


def asked(asking, wanted, answering):
    """{(head, name): {entity or None: features by name}} of references."""
    corpus, found = asking.corpus, {}
    for part in batches(asking, wanted, answering):
        for row, number in enumerate(part.reference):
            head = corpus.entities[corpus.head[corpus.window_of[wanted[number]]]]
            key = head.removeprefix("shop.main."), corpus.word_list[corpus.name[corpus.tail[wanted[number]]]]
            rows = np.flatnonzero(part.question == row)
            named = {corpus.entities[e] if (e := part.entity[p]) >= 0 else None: part.features[p] for p in rows}
            found[key] = {e: dict(zip(OF_REFERENCES, values, strict=True)) for e, values in named.items()}
    return found


@pytest.fixture
def answers(joined, fitted):
    return answers_of(joined, fitted[1])


def answers_of(joined, model):
    """What competes for the names that could not be followed."""
    asking = Asking(joined.data, leave_out=True)
    triples = joined.triples[asking.is_unresolved(joined.triples)]
    return asked(asking, triples, Answering(joined.data, model))


def test_entities_of_the_name_compete_and_nothing_else(answers):
    names = {key: set(found) - {None} for key, found in answers.items()}
    assert names["visit", "open_slowly"] == {"shop.doors.Door.open_slowly"}
    assert names["visit", "paint"] == {"shop.doors.Door.paint", "shop.doors.Gate.paint"}
    assert names["visit", "nowhere_at_all"] == set() == names["Room", "Unknown"]
    assert names["local", "hidden"] == set(), "what another function defines within itself"


def test_features_say_how_the_name_stands_and_what_the_file_imports(answers):
    of_door, of_gate = (answers["visit", "paint"][f"shop.doors.{name}.paint"] for name in ("Door", "Gate"))
    assert of_door["imported"] == of_door["in the tree"] == 1 and of_gate["same file"] == of_door["same file"] == 0
    assert of_door["owner before"] == of_door["dotted function"] == of_door["own class"] == 0
    assert answers["visit", "paint"][None]["none of an object's"] == 1
    bare = answers["local", "make"][None]
    assert bare["none of a bare name"] == 1 and bare["none of an object's"] == 0
    assert of_door["counts"] != 0 and of_door["counts of an object's"] == of_door["counts"]


SUPER = """
class Room(Unknown):
    def paint(self):
        return super().paint()

    def greet(self):
        return super(Room, self).greet()

    def call(self, other):
        other.call(super().call())

    def twice(self):
        self.twice()
        return super().twice()
"""


def test_what_follows_super_is_not_the_own_classs(fitted, tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "room.py").write_text(SUPER)
    joined = joined_with(fitted[0], tmp_path / "house")
    found = answers_of(joined, fitted[1])
    names = {word: set(entities) - {None} for (_, word), entities in found.items()}
    assert names["paint"] == names["greet"] == names["call"] == names["twice"] == set()
    asking, wanted = known(joined, "room.Room.twice")
    parts = batches(asking, wanted, Answering(joined.data, fitted[1]))
    right = {joined.data.corpus.entities[e] for part in parts for e in part.entity[part.gold] if e >= 0}
    assert "room.Room.twice" in right, "after self it is"


def known(joined, head):
    asking, corpus = Asking(joined.data, leave_out=True), joined.data.corpus
    triples = joined.triples[corpus.head[corpus.window_of[joined.triples]] == corpus.entities.index(head)]
    return asking, asking.known(triples)


def test_a_known_reference_is_hidden_and_its_tail_is_the_right_answer(joined, fitted):
    asking, wanted = known(joined, "shop.main.Room.enter")
    corpus, answering = joined.data.corpus, Answering(joined.data, fitted[1].eval())
    assert {corpus.entities[t] for t in corpus.tail[wanted]} == {"shop.main.Room.leave", "shop.doors.Door"}
    for part in batches(asking, wanted, answering):
        gold = part.gold
        assert part.entity[gold].tolist() == corpus.tail[wanted[part.reference]].tolist()
        assert corpus.relations[part.relation[gold[0]]] in ("calls", "instantiates")
    found = asked(asking, wanted, answering)
    assert found["Room.enter", "leave"]["shop.main.Room.leave"]["own class"] == 1
    assert found["Room.enter", "leave"][None]["none after self"] == 1
    door = found["Room.enter", "Door"]["shop.doors.Door"]
    assert door["a class"] == door["imported"] == 1


def test_a_tail_that_no_other_fact_names_is_no_answer_to_its_own_question(joined, fitted):
    asking, wanted = known(joined, "shop.main.visit")
    corpus = joined.data.corpus
    golds = {}
    for part in batches(asking, wanted, Answering(joined.data, fitted[1])):
        right = part.entity[part.gold]
        golds |= {corpus.entities[corpus.tail[wanted[c]]]: e for c, e in zip(part.reference, right, strict=True)}
    assert golds["posixpath.expanduser" if "posixpath.expanduser" in golds else "os.path.expanduser"] == -1
    assert golds["os.path.join"] >= 0  # training names it too


def test_the_encoder_adds_to_the_counts_and_an_answer_does_not_depend_on_what_else_is_asked(joined, fitted):
    asking = Asking(joined.data, leave_out=True)
    wanted = asking.known(joined.triples)
    answering = Answering(joined.data, fitted[1])
    together = asked(asking, wanted, answering)
    assert any(f["trust"] for found in together.values() for f in found.values())
    assert any(f["likeness"] for found in together.values() for f in found.values())
    for number in range(0, len(wanted), 3):
        for key, found in asked(asking, wanted[[number]], answering).items():
            for entity, features in found.items():
                assert features == pytest.approx(together[key][entity], abs=1e-4)


TRUE = np.array([1.5, -1.0, 0.7])


def choices_of(features, number, gold):
    """Choices between that none is right and some answers, as many as `number` has for each question."""
    question, begin = np.repeat(np.arange(len(number)), number + 1), np.cumsum(number + 1) - number - 1
    entity = np.arange(len(question))
    entity[begin] = -1
    zeros = np.zeros(len(number), int)
    return Choices(question, features, entity, entity, begin + gold, zeros, zeros)


def drawn(number, seed=0):
    """Questions whose right answers are drawn by TRUE; the last feature is that of none."""
    random = np.random.default_rng(seed)
    answers = random.integers(0, 5, number)
    blank = choices_of(np.zeros((answers.sum() + number, 3)), answers, np.zeros(number, int))
    features = np.concatenate([random.normal(size=(len(blank.question), 2)), np.zeros((len(blank.question), 1))], 1)
    features[blank.begin] = 0.0, 0.0, 1.0
    shares = choices_of(features, answers, 0 * answers).probabilities(TRUE)
    gold = [random.choice(len(of), p=of) for of in np.split(shares, blank.begin[1:])]
    return choices_of(features, answers, np.array(gold))


def test_the_fit_finds_the_weights_that_answers_were_drawn_by_and_is_calibrated():
    weights = fit(drawn(4000), np.zeros(3), np.ones(3, bool))
    assert np.allclose(weights, TRUE, atol=0.15)
    others = drawn(4000, seed=1)
    assert others.judged(weights)["calibration error"] < 0.03 and others.judged(5 * TRUE)["calibration error"] > 0.1
    error = calibration_error(np.array([0.2, 0.25, 0.92, 0.94, 1.0]), np.array([0, 1, 1, 1, 1]))
    assert error == pytest.approx((2 * 0.275 + 2 * 0.07) / 5)


def test_the_best_answer_may_be_none_and_figures_are_shares_of_right_answers():
    choices = choices_of(np.array([[0.0], [1.0], [2.0], [0.0], [0.0], [-1.0]]), np.array([2, 0, 1]), np.zeros(3, int))
    shares = choices.probabilities(np.ones(1))
    assert choices.best(shares).tolist() == [2, 3, 4]
    assert shares[3] == 1.0 and shares[4] == pytest.approx(1 / (1 + np.exp(-1)))
    features = np.array([[-9.0], [9.0], [0.0], [-9.0], [0.1], [0.0]])
    figures = choices_of(features, np.array([2, 2]), np.array([1, 2])).judged(np.ones(1))
    assert figures["right"] == figures["resolved"] == figures["sure"] == 0.5 and figures["right of the sure"] == 1.0


def test_a_validation_fits_probabilities_and_shuts_an_encoder_out_that_adds_nothing(shared):
    model, still = moved(shared), shared.model()
    assert not weights_of(model).any()
    for one in (model, still):
        evaluated(shared, one, "validation")
        assert weights_of(one).any(1).all()
    calibration, corpus = shared.calibration, shared.data.corpus
    choices, _ = calibration.hidden(corpus.triples_of("validation"), Answering(shared.data, model))
    start = np.array([float(name == "counts") for name in OF_REFERENCES])
    assert choices.loss(weights_of(model)[1]) < choices.loss(start)
    alone, chosen = weights_of(still)
    encoder = [OF_REFERENCES.index(name) for name in ("trust", "likeness")]
    assert np.array_equal(alone, chosen) and not chosen[encoder].any()


def test_the_test_says_how_predictions_do_beside_the_counts(fitted, monkeypatch):
    task, model = fitted
    corpus, hidden = task.data.corpus, task.calibration.hidden
    with torch.inference_mode():
        measured = task.calibration.measured(model)
        choices, _ = hidden(corpus.triples_of("test"), Answering(task.data, model))
        train = corpus.triples_of("train")
        (first, files), (again, _) = (hidden(train, Answering(task.data, model), 7) for _ in range(2))
    rows = {(row["references"], row["method"]): row for row in measured}
    for method, weights in zip((COMBINED, ENCODER), weights_of(model), strict=True):
        for name, value in choices.judged(weights).items():
            assert rows["all", method][name] == pytest.approx(value, nan_ok=True)
    assert "calibration error" in task.calibration.text(measured)
    assert len(files) == 7 and np.array_equal(first.features, again.features)
    half = dataclasses.replace(choices, of_object=np.arange(len(choices)) % 2 == 0)
    monkeypatch.setattr(task.calibration, "hidden", lambda *_: (half, None))
    names = [row["references"] for row in task.calibration.measured(model)]
    assert names == ["of an object"] * 2 + ["all"] * 2, "what is asked of a tree comes first"
