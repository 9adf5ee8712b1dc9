"""The methods without a model."""

import numpy as np

from lib.tasks.graphmer.chains import Query


def test_the_baselines_use_the_training_files_alone(graphmer):
    task = graphmer()
    train = task.data.corpus.triples_of("train")
    assert task.evaluator.baselines.frequency.sum() == len(train)
    counts = np.zeros_like(task.evaluator.baselines.frequency)
    for triple in train:
        counts[task.data.corpus.relation[triple], task.data.corpus.tail[triple]] += 1
    assert np.array_equal(counts, task.evaluator.baselines.frequency)


def test_a_tail_whose_name_stands_in_the_text_comes_first(graphmer):
    task = graphmer()
    corpus, baselines = task.data.corpus, task.evaluator.baselines
    calls = corpus.relations.index("calls")
    triple = next(int(t) for t in corpus.triples_of("test") if corpus.relation[t] == calls)
    candidates = task.evaluator.candidates.of_relation[calls]
    scores = baselines.scores(Query(triple, "full_text"), candidates)
    best = corpus.name[candidates[scores.argmax()]]
    assert best in corpus.window_text(corpus.window_of[triple])
    assert (np.isin(corpus.name[candidates], corpus.window_text(corpus.window_of[triple])) == (scores >= 1e9)).all()
