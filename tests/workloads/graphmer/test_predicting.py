"""A new tree beside the corpus of training, which entities compete for a name, and probabilities of answers."""

import numpy as np
import pandas as pd
import pytest
import torch

from tests.workloads.graphmer.conftest import joined_with, moved, words_of
from tests.workloads.graphmer.test_evaluation import evaluated
from workloads.codegraph.graph import build as build_graph
from workloads.graphmer.choices import SURE, best, fit, probabilities
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.predicting import Calibration, weights_of
from workloads.graphmer.settings import OF_REFERENCES


def facts(corpus, triples):
    facts = set()
    for triple, window in zip(triples, corpus.window_of[triples], strict=True):
        tail = corpus.tail[triple]
        head = corpus.entities[corpus.head[window]]
        relation = corpus.relations[corpus.relation[triple]]
        kind = corpus.types[corpus.entity_type[tail]]
        file = corpus.files[corpus.window_file[window]].removeprefix("<tree>/")
        facts.add((head, relation, corpus.entities[tail], kind, file))
    return facts


def facts_of(graph):
    return {(*t.key, graph.entities[t.tail].type, t.file) for t in graph.triples}


def test_facts_and_texts_of_both_are_in_the_joined_corpus(fitted, new_tree):
    trained = fitted[0].data.corpus
    joined = joined_with(fitted[0], new_tree)
    corpus = joined.data.corpus
    of_tree = facts_of(build_graph(new_tree))
    assert "catches" not in trained.relations
    assert facts(corpus, joined.triples) == {fact for fact in of_tree if fact[1] != "catches"}
    own = np.arange(len(trained.relation))
    assert facts(corpus, own) == facts(trained, own)
    is_call = corpus.relation[joined.triples] == corpus.relations.index("calls")
    for triple in joined.triples[is_call]:
        name = corpus.word_list[corpus.name[corpus.tail[triple]]]
        assert name in words_of(corpus, corpus.window_of[triple])


def test_entities_of_the_tree_are_new_and_none_is_a_builtin(fitted, new_tree):
    trained = fitted[0].data.corpus
    corpus = joined_with(fitted[0], new_tree).data.corpus
    inside = {corpus.entities[e] for e in np.flatnonzero(corpus.entity_file >= len(trained.files))}
    assert {"shop.doors.Door", "shop.main.visit", "file::shop/main.py"} <= inside
    assert not inside & set(trained.entities)
    assert not any(name.startswith("builtins.") for name in inside)


def test_a_module_that_training_had_counts_as_the_tree_has_it_now(fitted, tmp_path):
    """A tree that was trained on is not asked with its own answers."""
    trained = fitted[0].data.corpus
    in_training = trained.window_file[trained.split == 0]
    houses = [file for file in trained.files if file.startswith("house")]
    file = next(file for file in houses if trained.files.index(file) in in_training)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / file).write_text("def fresh():\n    return len('a')\n")
    joined = joined_with(fitted[0], tmp_path / "again")
    corpus = joined.data.corpus
    own = np.flatnonzero(corpus.window_file == trained.files.index(file))
    assert len(own)
    assert not (corpus.split[own] == 0).any()
    assert np.isin(joined.triples, corpus.triples_of("train")).all()
    module = file.removesuffix(".py")
    gone = corpus.entities.index(f"{module}.House{module.removeprefix('house')}")
    assert corpus.entity_file[gone] == -1
    assert corpus.entity_file[corpus.entities.index(f"{module}.fresh")] >= 0


def batches(asking, wanted, answering):
    with torch.inference_mode():
        return list(asking.ask(wanted, answering))


def test_a_builtins_method_is_an_answer_though_no_other_fact_names_it(fitted, tmp_path):
    (tmp_path / "once").mkdir()
    (tmp_path / "once" / "a.py").write_text("def f():\n    return 'a'.zfill(3)\n")
    joined = joined_with(fitted[0], tmp_path / "once")
    asking = Calibration(joined.data)
    (part,) = batches(asking, asking.known(joined.triples), Answering(joined.data, fitted[1]))
    (right,) = part.loc[part.right, "entity"]
    assert joined.data.corpus.entities[right] == "builtins.str.zfill"


def asked(asking, wanted, answering):
    """{(head, name): {entity or None: features by name}} of references."""
    corpus = asking.corpus
    found = {}
    for part in batches(asking, wanted, answering):
        for number, answers in part.groupby("question"):
            triple = wanted[number]
            head = corpus.entities[corpus.head[corpus.window_of[triple]]]
            word = corpus.word_list[corpus.name[corpus.tail[triple]]]
            names = [corpus.entities[e] if e >= 0 else None for e in answers["entity"]]
            features = answers[OF_REFERENCES].to_dict("records")
            key = head.removeprefix("shop.main."), word
            found[key] = dict(zip(names, features, strict=True))
    return found


@pytest.fixture
def answers(joined, fitted):
    return answers_of(joined, fitted[1])


def answers_of(joined, model):
    """What competes for the names that could not be followed."""
    asking = Calibration(joined.data)
    triples = joined.triples[asking.is_unresolved[joined.triples]]
    return asked(asking, triples, Answering(joined.data, model))


def test_entities_of_the_name_compete_and_nothing_else(answers):
    names = {key: set(found) - {None} for key, found in answers.items()}
    assert names["visit", "open_slowly"] == {"shop.doors.Door.open_slowly"}
    assert names["visit", "paint"] == {"shop.doors.Door.paint", "shop.doors.Gate.paint"}
    assert names["visit", "nowhere_at_all"] == set() == names["Room", "Unknown"]
    assert names["local", "hidden"] == set(), "what another function defines within itself"


SUPER = """
class Room(Unknown):
    def paint(self):
        return super().paint()

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
    assert names["paint"] == names["twice"] == set()
    asking, wanted = known(joined, "room.Room.twice")
    right = set()
    for part in batches(asking, wanted, Answering(joined.data, fitted[1])):
        right.update(part.loc[part.right, "entity"])
    own = joined.data.corpus.entities.index("room.Room.twice")
    assert own in right, "after self it is"


def known(joined, head):
    asking = Calibration(joined.data)
    corpus = joined.data.corpus
    heads = corpus.head[corpus.window_of[joined.triples]]
    triples = joined.triples[heads == corpus.entities.index(head)]
    return asking, asking.known(triples)


def test_a_known_reference_is_hidden_and_its_tail_is_the_right_answer(joined, fitted):
    asking, wanted = known(joined, "shop.main.Room.enter")
    corpus = joined.data.corpus
    answering = Answering(joined.data, fitted[1].eval())
    tails = {corpus.entities[tail] for tail in corpus.tail[wanted]}
    assert tails == {"shop.main.Room.leave", "shop.doors.Door"}
    for part in batches(asking, wanted, answering):
        right = part[part.right]
        relations = {corpus.relations[relation] for relation in right["relation"]}
        assert right["entity"].tolist() == corpus.tail[wanted[right["question"]]].tolist()
        assert relations <= {"calls", "instantiates"}
    found = asked(asking, wanted, answering)
    assert found["Room.enter", "leave"]["shop.main.Room.leave"]["own class"] == 1
    assert found["Room.enter", "Door"]["shop.doors.Door"]["imported"] == 1


def test_the_encoder_adds_to_the_counts(joined, fitted):
    asking = Calibration(joined.data)
    wanted = asking.known(joined.triples)
    for part in batches(asking, wanted, Answering(joined.data, fitted[1])):
        assert part["trust"].any()
        assert part["likeness"].any()


def test_an_answer_does_not_depend_on_other_references(joined, fitted):
    asking = Calibration(joined.data)
    wanted = asking.known(joined.triples)
    answering = Answering(joined.data, fitted[1])
    together = asked(asking, wanted, answering)
    for number in range(0, len(wanted), 3):
        for key, found in asked(asking, wanted[[number]], answering).items():
            for entity, features in found.items():
                assert features == pytest.approx(together[key][entity], abs=1e-4)


TRUE = {"counts": 1.5, "trust": -1.0, "none": 0.7}
WEIGHTS = np.array([TRUE.get(name, 0.0) for name in OF_REFERENCES])


def drawn(number, seed=0):
    """Questions whose right answers are drawn by TRUE; the first answer of each is that none is right."""
    random = np.random.default_rng(seed)
    question = np.repeat(np.arange(number), 1 + random.integers(0, 5, number))
    table = pd.DataFrame(0.0, np.arange(len(question)), OF_REFERENCES).assign(question=question)
    is_none = ~table["question"].duplicated().to_numpy()
    table["none"] = is_none.astype(float)
    values = random.normal(size=(len(table), 2))
    table[["counts", "trust"]] = values * ~is_none[:, None]
    shares = probabilities(table, WEIGHTS)
    right = [random.choice(of.index, p=of) for _, of in shares.groupby(question)]
    return table.assign(right=table.index.isin(right))


def test_the_fit_finds_the_weights_that_answers_were_drawn_by():
    weights = fit(drawn(4000), np.zeros(len(OF_REFERENCES)))
    assert np.allclose(weights, WEIGHTS, atol=0.15)
    others = drawn(4000, seed=1)
    chance = probabilities(others, weights)
    rows = best(others, chance)
    right = others.right[rows]
    assert right.mean() == pytest.approx(chance[rows].mean(), abs=0.03), "as many as promised"
    assert right[chance[rows] >= SURE].mean() > right.mean()


def test_none_is_right_where_the_probabilities_are_no_numbers():
    questions = drawn(5)
    rows = best(questions, probabilities(questions, WEIGHTS * np.nan))
    assert questions["none"][rows].tolist() == [1.0] * 5


def test_a_validation_fits_probabilities(shared):
    model = moved(shared)
    assert not weights_of(model).any()
    evaluated(shared, model, "validation")
    calibration = Calibration(shared.data)
    triples = shared.data.corpus.triples_of("validation")
    choices = calibration.hidden(triples, Answering(shared.data, model))
    start = np.array([float(name == "counts") for name in OF_REFERENCES])

    def likelihood(weights):
        chance = probabilities(choices, weights)
        return np.log(chance[choices["right"]]).sum()

    assert likelihood(weights_of(model)) > likelihood(start)


def test_an_encoder_that_adds_nothing_gets_no_weight(shared):
    model = shared.model()
    evaluated(shared, model, "validation")
    assert weights_of(model).any()
    encoder = [OF_REFERENCES.index(name) for name in ("trust", "likeness")]
    assert not weights_of(model)[encoder].any()
