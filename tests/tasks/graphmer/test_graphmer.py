"""Windows, chains, encoder and ranking of graphmer, against brute force and by what they must never show."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib.errors import BadInput
from lib.task import find_task, load_config, load_task
from lib.tasks.graphmer import ranking, tokens
from lib.tasks.graphmer.chains import Query
from lib.tasks.graphmer.model import HGat, distances
from lib.tasks.graphmer.settings import CONDITIONS
from lib.tasks.graphmer.tokens import IGNORE
from lib.training.evaluation import EvaluationLoader
from tests.conftest import SAMPLES

MODULE = '''
import os
from helper{n} import open_door, close_door

class House{n}(Base{n}):
    """A house."""

    def enter_house(self, guest):
        door = open_door(guest)
        if not door:
            raise ValueError("closed")
        close_door(door)
        return os.path.join("a", guest)

    def leave_house(self):
        self.enter_house(None)
        close_door(None)
'''
HELPER = "def open_door(x):\n    return x\n\n\ndef close_door(x):\n    return None\n"
CONFIG = """
task: graphmer
training: {max_steps: 2, effective_batch: 6}
workload:
  chain: {roots: 24, leaves: 4, vocabulary: 400}
  model: {layers: 2, hidden: 8, heads: 2, feed_forward: 16, relation_rank: 4, dropout: 0.0}
  split: {validation: 0.3, test: 0.3}
  objective: {mlm_ratio: 0.3, leaf_ratio: 0.5, name_mask_ratio: 0.4, name_only_ratio: 0.1}
  evaluation: {validation_triples: 20, test_triples: 20, structural_test_triples: 10}
"""


@pytest.fixture
def graphmer(tmp_path):
    """graphmer(**overrides) -> the task on a small tree of sources."""
    source = tmp_path / "tree"
    source.mkdir()
    for n in range(16):
        (source / f"house{n}.py").write_text(MODULE.format(n=n))
        (source / f"helper{n}.py").write_text(HELPER)
    (tmp_path / "graphmer.yaml").write_text(CONFIG)

    def make(overrides=None):
        config = load_config(tmp_path / "graphmer.yaml", {"data.dir": str(source), **(overrides or {})})
        return load_task(config)

    return make


def words_of(corpus, ids):
    return [corpus.word_list[i] for i in ids]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_words_keep_identifiers_and_the_signs_that_tell_roles():
    assert tokens.words("x = obj.call(1, 'a')[0]  # note") == ["x", "=", "obj", ".", "call", "(", "a", "note"]
    assert tokens.name_parts("json.decoder.JSONDecoder") == ["JSONDecoder", "decoder", "json"]
    assert tokens.name_parts("name::open") == ["open", "name"]


def test_no_file_stands_in_two_splits(graphmer):
    corpus = graphmer().data.corpus
    files = {}
    for triple in graphmer().data.graph.triples:
        files.setdefault(triple.head, triple.file)
    splits = ("train", "validation", "test")
    by_split = [{files[corpus.entities[corpus.head[w]]] for w in corpus.windows_of(s)} for s in splits]
    assert all(by_split) and not any(a & b for a, b in itertools.combinations(by_split, 2))


def test_every_triple_stands_once_and_in_a_window_with_its_line(graphmer):
    task = graphmer()
    corpus = task.data.corpus
    seen = set()
    for index in range(len(corpus.relation)):
        window = corpus.window_of[index]
        head, tail = corpus.entities[corpus.head[window]], corpus.entities[corpus.tail[index]]
        seen.add((head, corpus.relations[corpus.relation[index]], tail))
        if corpus.relations[corpus.relation[index]] == "calls":
            assert corpus.word_list[corpus.name[corpus.tail[index]]] in words_of(corpus, corpus.window_text(window))
    assert seen == {t.key for t in task.data.graph.triples} and len(seen) == len(corpus.relation)


def test_windows_stay_within_the_roots(graphmer):
    corpus = graphmer().data.corpus
    for window in range(len(corpus)):
        assert corpus.pieces.lengths(corpus.window_text(window)).sum() < 24


def test_two_builds_give_the_same_corpus_and_the_cache_is_the_same(graphmer, tmp_path):
    first = graphmer().data.corpus
    again = graphmer().data.corpus  # out of the cache
    for path in (tmp_path / "cache").rglob("*.npz"):
        path.unlink()
    fresh = graphmer().data.corpus
    for name in first.__dataclass_fields__:
        for other in (again, fresh):
            assert np.array_equal(getattr(first, name), getattr(other, name)), name
    assert first.fingerprint() == fresh.fingerprint()


def test_a_damaged_cache_is_built_again(graphmer, tmp_path, capsys):
    want = graphmer().data.corpus.fingerprint()
    (path,) = (tmp_path / "cache").rglob("*.npz")
    path.write_bytes(path.read_bytes()[:1000])
    assert graphmer().data.corpus.fingerprint() == want
    assert "is damaged" in capsys.readouterr().out


def queries(task, condition):
    return [q for q in task.datasets()["test"] if q.condition == condition]


def names_in(task, batch, row):
    """The words whose whole sequence of pieces stands in the visible roots and leaves of a sample."""
    corpus = task.data.corpus
    visible = [*batch["roots"][row].tolist(), *batch["leaves"][row].flatten().tolist()]
    found = set()
    for word in range(len(corpus.word_list)):
        pieces = corpus.pieces.expand(np.array([word]))[0].tolist()
        if any(visible[i : i + len(pieces)] == pieces for i in range(len(visible))):
            found.add(corpus.word_list[word])
    return found


def test_masked_queries_show_the_tail_nowhere(graphmer):
    task = graphmer()
    for query in queries(task, "masked"):
        batch = task.collate([query], generator())
        name = task.data.corpus.word_list[task.data.corpus.name[task.data.corpus.tail[query.triple]]]
        assert name not in names_in(task, batch, 0)
        assert (batch["leaves"] == tokens.MASK).all(), "the tail's length must not be told"


def test_masked_leaves_hang_where_the_name_was_and_others_on_the_heads_name(graphmer):
    task = graphmer()
    calls = task.data.corpus.relations.index("calls")
    query = next(q for q in queries(task, "masked") if task.data.corpus.relation[q.triple] == calls)
    batch = task.collate([query], generator())
    places = (batch["roots"][0] == tokens.NAME).nonzero().flatten().tolist()
    assert places and batch["span"][0, 0].nonzero().flatten().tolist() == places
    batch = task.collate([Query(query.triple, "full_text")], generator())
    assert batch["span"][0, 0].nonzero().flatten().tolist()[0] == 0
    assert (batch["roots"] != tokens.NAME).all()


def test_name_only_queries_have_no_text(graphmer):
    task = graphmer()
    for query in queries(task, "name_only"):
        roots = task.collate([query], generator())["roots"][0].tolist()
        assert roots.index(tokens.SEP) == sum(r != tokens.PAD for r in roots) - 1


def test_training_masks_are_drawn_afresh_and_repeat_with_the_generator(graphmer):
    task = graphmer()
    windows = [task.datasets()["train"][i] for i in range(6)]
    first, same, other = (task.collate(windows, generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert not torch.equal(first["root_targets"], other["root_targets"])


def test_training_never_shows_a_name_that_it_hides(graphmer):
    task = graphmer({"workload.objective.mlm_ratio": 0.0, "workload.objective.name_only_ratio": 0.0})
    corpus, checked = task.data.corpus, 0
    for index, window in enumerate(task.datasets()["train"]):
        batch = task.collate([window], generator(index))
        for group in range(batch["relation"].shape[1]):
            hangs_on = batch["roots"][0][batch["span"][0, group]]
            if (hangs_on == tokens.NAME).all():
                target = [p for p in batch["leaf_targets"][0, group].tolist() if p != IGNORE]
                assert target, "a triple with a hidden name must be asked for"
                rows = (corpus.leaves[corpus.tail][:, : len(target)] == target).all(1)
                names = {corpus.word_list[corpus.name[t]] for t in corpus.tail[rows]}
                assert not names & names_in(task, batch, 0)
                checked += 1
    assert checked > 5


def test_masked_leaves_are_whole_and_visible_ones_are_never_targets(graphmer):
    task = graphmer()
    batch = task.collate([task.datasets()["train"][i] for i in range(20)], generator())
    asked = (batch["leaf_targets"] != IGNORE).any(-1)
    assert asked.any() and not asked.all()
    assert (batch["leaves"][asked] == tokens.MASK).all()
    assert (batch["leaves"][~asked] != tokens.MASK).all()


def test_span_masking_hits_its_ratio_and_spares_specials(graphmer):
    task = graphmer({"workload.objective.name_mask_ratio": 0.0, "workload.objective.name_only_ratio": 0.0})
    batch = task.collate([task.datasets()["train"][i] for i in range(40)], generator())
    asked = batch["root_targets"] != IGNORE
    share = asked.sum() / (batch["roots"] != tokens.PAD).sum()
    assert 0.15 < share < 0.35  # 0.3 asked for, less what falls on separators and on one another
    assert (batch["root_targets"][asked] >= len(tokens.SPECIALS)).all()


def test_distances_are_shortest_paths(graphmer):
    roots, leaves = 5, 3
    size = roots * (1 + leaves)
    edges = [(i, i + 1) for i in range(roots - 1)]
    edges += [(root, roots + root * leaves + k) for root in range(roots) for k in range(leaves)]
    want = np.full((size, size), np.inf)
    np.fill_diagonal(want, 0)
    for a, b in edges:
        want[a, b] = want[b, a] = 1
    for middle in range(size):  # Floyd and Warshall
        want = np.minimum(want, want[:, middle : middle + 1] + want[middle : middle + 1])
    assert np.array_equal(distances(roots, leaves).numpy(), want)


def test_hgat_equals_its_formula_written_out():
    torch.manual_seed(0)
    hidden, relations, rank = 6, 3, 2
    gat = HGat(hidden, relations, rank)
    leaves, roots = torch.randn(2, 2, 3, hidden), torch.randn(2, 5, hidden)
    relation = torch.tensor([[0, 2], [1, 1]])
    span = torch.rand(2, 2, 5) < 0.5
    span[..., 0] = True
    got = gat(leaves, relation, roots, span)
    for b, g, k in itertools.product(range(2), range(2), range(3)):
        r = int(relation[b, g])
        W = (gat.down[:, r * rank : (r + 1) * rank] @ gat.up[r * rank : (r + 1) * rank]).T  # (d, d)
        heads = [j for j in range(5) if span[b, g, j]]
        e = [
            F.leaky_relu(gat.attend_leaf[r] @ (W @ leaves[b, g, k]) + gat.attend_head[r] @ (W @ roots[b, j]), 0.2)
            for j in heads
        ]
        alpha = torch.stack(e).softmax(0)
        want = leaves[b, g, k] + sum(a * (W @ roots[b, j]) for a, j in zip(alpha, heads, strict=True))
        assert torch.allclose(got[b, g, k], want, atol=1e-5)


def test_attention_decays_by_the_papers_formula(graphmer):
    task = graphmer()
    model = task.model()
    batch = task.collate([task.datasets()["train"][0]], generator())
    ids = torch.cat([batch["roots"], batch["leaves"].flatten(1)], 1)
    bias = model._bias(ids)
    distance = distances(24, 4)[: ids.shape[1], : ids.shape[1]]
    for head, p in enumerate(model.reach.tolist()):
        for j in range(0, ids.shape[1], 7):
            want = math.log(0.6) * float(F.gelu(distance[3, j].sqrt() - p)) + (-1e4 if ids[0, j] == 0 else 0)
            assert bias[0, head, 3, j].item() == pytest.approx(want, abs=1e-3)


def test_padding_and_unused_roots_change_nothing(graphmer):
    task = graphmer()
    model = task.model().eval()
    windows = list(task.datasets()["train"])
    longest = max(windows, key=lambda w: task.data.corpus.first_triple[w + 1] - task.data.corpus.first_triple[w])
    shortest = min(windows, key=lambda w: task.data.corpus.first_triple[w + 1] - task.data.corpus.first_triple[w])
    alone = task.data.collator._stack([task.data.collator._training_chain(shortest, generator(3))])
    both = task.data.collator._stack(
        [task.data.collator._training_chain(w, generator(3)) for w in (shortest, longest)]
    )
    groups = alone["leaves"].shape[1]
    assert groups < both["leaves"].shape[1]
    used = 24 + groups * 4
    assert torch.allclose(model(alone)[0], model(both)[0, :used], atol=1e-5)


def test_the_model_reads_no_data_and_takes_the_example_batch(tmp_path):
    (tmp_path / "graphmer.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "graphmer.yaml", {"data.dir": ""})
    task = find_task("graphmer")(config)
    batch = task.example_batch(3, torch.device("cpu"))
    sums, _ = task.loss(task.model(), batch)
    assert batch["leaves"].shape == (3, 24, 4) and all(torch.isfinite(v) for v in sums.values())
    assert "data" not in vars(task)


def brute_force_rank(task, triple, scores, candidates):
    """Sorts the candidates left after filtering and averages the places that equal scores may take."""
    corpus = task.data.corpus
    head, relation = corpus.head[corpus.window_of[triple]], corpus.relation[triple]
    true = {
        int(corpus.tail[t])
        for t in range(len(corpus.tail))
        if corpus.head[corpus.window_of[t]] == head and corpus.relation[t] == relation
    } - {int(corpus.tail[triple])}
    kept = [(s, int(c)) for s, c in zip(scores, candidates, strict=True) if int(c) not in true]
    own = next(s for s, c in kept if c == corpus.tail[triple])
    ordered = sorted((s for s, _ in kept), reverse=True)
    return np.mean([i + 1 for i, s in enumerate(ordered) if s == own])


def test_ranks_equal_brute_force_with_ties_and_filter(graphmer):
    task = graphmer()
    draw = np.random.default_rng(0)
    checked = 0
    for triple in task.data.corpus.triples_of("test"):
        relation = task.evaluator.candidates.of_relation[task.data.corpus.relation[triple]]
        for candidates in (relation, task.evaluator.candidates.everything):
            scores = draw.integers(0, 4, len(candidates)).astype(float)
            got = task.evaluator.candidates.rank(int(triple), scores, candidates)
            if task.evaluator.candidates.seen(int(triple)):
                assert got == brute_force_rank(task, triple, scores, candidates)
                checked += 1
            else:
                assert got == len(candidates) + 1
    assert checked > 20


def test_figures_by_hand():
    got = ranking.figures([1, 2, 4, 20])
    assert got == {"mrr": (1 + 0.5 + 0.25 + 0.05) / 4, "hits1": 0.25, "hits3": 0.5, "hits10": 0.75}


def test_the_baselines_use_the_training_files_alone(graphmer):
    task = graphmer()
    train = task.data.corpus.triples_of("train")
    assert task.evaluator.baselines.frequency.sum() == len(train)
    counts = np.zeros_like(task.evaluator.baselines.frequency)
    for triple in train:
        counts[task.data.corpus.relation[triple], task.data.corpus.tail[triple]] += 1
    assert np.array_equal(counts, task.evaluator.baselines.frequency)


def test_a_finished_evaluation_has_the_keys_of_the_protocol(graphmer, tmp_path):
    task = graphmer()
    model = task.model().eval()
    loader = EvaluationLoader(task, task.datasets()["test"], 7, torch.device("cpu"))
    with torch.inference_mode():
        scores = task.evaluate(model, loader)
    assert scores.keys() - {"loss"} == task.baseline().keys()
    assert {f"mrr_{c}" for c in CONDITIONS} <= scores.keys()
    text = task.report(scores, tmp_path)
    assert "text match" in text and "context words" in text and "head name" in text
    header, *rows = (tmp_path / "evaluation.csv").read_text().splitlines()
    assert header.startswith("condition,relations,tails,method,candidates,triples,mrr")
    assert len(rows) == 3 * 2 * 3 * 3 + 3 * 2 * 3  # and the encoder among all entities


def test_training_learns_what_the_text_shows(graphmer):
    """With every name in the text, a few hundred steps on a toy tree must beat the frequency of tails by far."""
    task = graphmer({"workload.model.hidden": 32, "workload.objective.leaf_ratio": 1.0})
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    windows = list(task.datasets()["train"])
    first = last = None
    for step in range(60):
        batch = task.collate(windows, generator(step))
        sums, _ = task.loss(model, batch)
        loss = sums["mnm"] / task.count(batch)["mnm"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < 0.5 * first


@pytest.mark.skipif(not (SAMPLES / "graphmer_kg").is_dir(), reason="the sample graph is not there")
def test_the_given_sample_graph_is_read_and_trained_on(graphmer):
    task = graphmer({"data.dir": str(SAMPLES / "graphmer_kg"), "workload.chain.vocabulary": 2000,
                     "workload.split.validation": 0.05, "workload.split.test": 0.1})
    assert len(task.data.corpus.relation) == 24_559
    batch = task.collate([task.datasets()["train"][i] for i in range(4)], generator())
    sums, _ = task.loss(task.model(), batch)
    assert all(torch.isfinite(v) for v in sums.values())


def test_a_source_file_that_cannot_be_read_is_named_and_refused_unless_allowed(graphmer, tmp_path, capsys):
    task = graphmer()
    (tmp_path / "tree" / "latin.py").write_bytes(b"name = '\xe9\xff'\n")
    with pytest.raises(BadInput, match=r"(?s)Unreadable source files: 1; .*bad_input_limit: 1\.\n.*latin\.py"):
        task.data.graph  # noqa: B018
    assert len(graphmer({"workload.bad_input_limit": 1}).data.graph.triples) > 100
    assert "Left out latin.py" in capsys.readouterr().out


def test_too_few_files_for_three_splits_is_said(graphmer, tmp_path):
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "one.py").write_text("def f():\n    g()\n")
    with pytest.raises(BadInput, match=r"No triple is left for the \w+ split: the data comes from 1 files"):
        graphmer({"data.dir": str(lone)}).data.corpus  # noqa: B018


def test_too_many_relations_for_the_model_are_said_before_training(graphmer):
    with pytest.raises(BadInput, match=r"relations and workload.model.relations is 2"):
        graphmer({"workload.model.relations": 2}).data.corpus  # noqa: B018


def test_a_malformed_line_of_given_triples_is_named(graphmer, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "entities.jsonl").write_text(json.dumps({"id": "a", "type": "Module"}) + "\n")
    (folder / "triples.jsonl").write_text('{"head": "a",\n')
    with pytest.raises(BadInput, match=r"triples\.jsonl:1"):
        graphmer({"data.dir": str(folder)}).data.graph  # noqa: B018
