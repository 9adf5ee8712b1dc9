"""The recipe of the small base: its chats and its rows."""

import json
import random
import shutil
from collections import Counter

import pytest

from lib.config import with_changes
from lib.task import load_config, load_task
from tests.conftest import ROOT
from tests.workloads.chat.conftest import CONFIG
from trainbook import IGNORED
from workloads.chat.base import rows as recipe
from workloads.chat.base import stand_in
from workloads.chat.base.chats import STOP, Chats
from workloads.chat.base.rows import COPYING, LENGTH, LONG, Rows, tokenizer_of
from workloads.chat.generated import API, split_of

LEXICON = ["alpha", "beta", "gamma", "delta"]


DOCS = [f"Part {number} of a docstring of a few words.\n" * 20 for number in range(60)]


@pytest.fixture(scope="module")
def rows():
    chats = Chats(1, LEXICON)
    texts = [chats.text() for _ in range(200)]
    return Rows(tokenizer_of(texts, 400), chats, DOCS, 200, "train")


def test_chats_are_those_of_their_seed_without_functions_or_held_out_values_of_the_task():
    chats = Chats(1, LEXICON)
    texts = [chats.text() for _ in range(50)]
    again = Chats(1, LEXICON)
    assert [again.text() for _ in range(50)] == texts
    assert not {function.name for function in chats.functions} & {*API}
    values = [chats.value() for _ in range(200)]
    assert all(split_of(value) == "train" or value.endswith(":00") for value in values)


def test_an_example_asks_in_one_form_and_is_answered_in_one():
    chats = Chats(3, LEXICON)
    turns = [chats.by_example() for _ in range(20)]
    for talk in turns:
        assert len({question.split()[0] for question, _ in talk}) == 1
    answers = [answer for talk in turns for _, answer in talk if answer.startswith("{")]
    assert all(map(json.loads, answers))


def test_rows_train_the_second_copy_the_answers_and_whole_docstrings(rows):
    ids, labels = rows.copy(random.Random(0), LENGTH)
    answer = [label for label in labels if label != IGNORED]
    assert len(ids) == len(labels) == LENGTH
    assert answer[-1] == rows.stop
    copied = answer[:-1]
    assert ids[len(rows.head) : len(rows.head) + len(copied)] == copied
    ids, labels = rows.chat(1.0, LENGTH)
    trained = [label for label in labels if label != IGNORED]
    assert 0 < len(trained) < len(ids)
    assert STOP in rows.tokenizer.decode(trained, skip_special_tokens=False)
    ids, labels = rows.doc(random.Random(0), LENGTH)
    assert ids == labels


def test_a_row_follows_from_its_number_alone_and_copies_come_first(rows):
    assert [*rows.order(0, 0)] == [*range(200)]
    name, ids, labels = rows[150]
    rows[151]
    again = rows[150]
    assert again[0] == name
    assert (again[1] == ids).all()
    assert (again[2] == labels).all()
    (first,) = {rows.kind(number / 200, number) for number in range(int(COPYING * 200))}
    assert first == "copy"
    late = Counter(rows.kind(0.5, number) for number in range(20))
    assert late == {"copy": 1, "chat": 15, "docs": 4}


def test_rows_of_the_end_are_long_step_by_step_and_follow_more_examples(rows):
    lengths = [len(ids) for _, ids, _ in rows]
    assert lengths == [LENGTH] * 180 + [LONG] * 20
    assert rows.tokens() == sum(lengths)
    held_out = Rows(rows.tokenizer, rows.chats, DOCS, 20, "test")
    assert {len(ids) for _, ids, _ in held_out} == {LONG}
    questions = [len(Chats(seed, LEXICON).turns(1.0, 7)) for seed in range(60)]
    assert max(questions) > max(len(Chats(seed, LEXICON).turns(1.0)) for seed in range(60))


def test_a_notebook_without_a_base_gets_a_small_one_once_and_says_what_a_real_one_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(recipe, "docstrings", lambda: DOCS)
    small = (ROOT / "configs" / "chat_base.yaml").read_text("utf-8")
    fewer = small.replace("rows: 58000", "rows: 40").replace("batch: 20", "batch: 4")
    (tmp_path / "base.yaml").write_text(fewer, "utf-8")
    monkeypatch.setattr(stand_in, "_RECIPE", tmp_path / "base.yaml")
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    (tmp_path / "chat.yaml").write_text(CONFIG)
    changes = {"workload.base": "somebody/chat/transformers/base", "output_dir": str(tmp_path)}
    config = stand_in.with_base(load_config(tmp_path / "chat.yaml", changes))
    text = capsys.readouterr().out
    assert "There is no base somebody/chat" in text
    assert "qwen-lm/qwen2.5/transformers/1.5b-instruct" in text
    weights = tmp_path / "chat-base" / "model.safetensors"
    content = weights.read_bytes()
    assert config.checkpoint.frozen == "save"
    shutil.move(tmp_path / "chat-base", tmp_path / "lost")  # and with it only the run's own state
    state = tmp_path / "chat" / "checkpoints" / "step-00000002" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"published": {config.workload.base: {"sha256": "0"}}}))
    again = stand_in.with_base(load_config(tmp_path / "chat.yaml", changes))
    assert again == config
    assert not weights.exists()
    shutil.move(tmp_path / "lost", tmp_path / "chat-base")
    shutil.rmtree(tmp_path / "chat")
    assert stand_in.with_base(load_config(tmp_path / "chat.yaml", changes)) == config
    assert weights.read_bytes() == content
    assert load_task(config).model().get_base_model().config.hidden_size == 128
    assert "the small one of the earlier session" in capsys.readouterr().out
    own = with_changes(config, {"workload.base": str(tmp_path / "chat-base")})
    assert stand_in.with_base(own) is own
