"""The recipe of the small base: its chats and its rows."""

import json
import shutil

import pytest

from lib.config import with_changes
from lib.task import load_config, load_task
from tests.workloads.chat.conftest import CONFIG
from trainbook import IGNORED
from workloads.chat.base import make, stand_in
from workloads.chat.base.chats import STOP, Chats
from workloads.chat.base.rows import Rows, tokenizer_of
from workloads.chat.generated import API, split_of

LEXICON = ["alpha", "beta", "gamma", "delta"]


@pytest.fixture(scope="module")
def rows():
    chats = Chats(1, LEXICON)
    texts = [chats.text() for _ in range(200)]
    return Rows(tokenizer_of(texts, 400), chats, ["A docstring of a function.\n" * 40])


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
    ids, labels = rows.copy(64)
    answer = [label for label in labels if label != IGNORED]
    assert len(ids) == len(labels) == 64
    assert answer[-1] == rows.stop
    copied = answer[:-1]
    assert ids[len(rows.head) : len(rows.head) + len(copied)] == copied
    ids, labels = rows.chat(200, 1.0, 4)
    trained = [label for label in labels if label != IGNORED]
    assert 0 < len(trained) < len(ids)
    assert STOP in rows.tokenizer.decode(trained)
    ids, labels = rows.doc(32)
    assert ids == labels


def test_a_batch_has_copies_chats_and_docstrings_by_their_share(rows):
    ids, labels, chats = rows.batch(960, 96, 0.8, 1.0, 4)
    assert ids.shape == labels.shape == (10, 96)
    assert chats == 8
    assert (ids[8:] == labels[8:]).all()


def test_a_notebook_without_a_base_gets_a_small_one_once_and_says_what_a_real_one_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(make, "docstrings", lambda: ["A docstring of a few words.\n" * 20] * 60)
    monkeypatch.setattr(stand_in, "_MINUTES", 0.01)
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
