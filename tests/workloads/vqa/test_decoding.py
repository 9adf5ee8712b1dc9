"""What written tokens say, and a search in bounded batches that goes on where memory ran out."""

import pytest
import torch

from workloads.vqa import decoding


@pytest.fixture
def made(vqa):
    """A task, its model in evaluation mode, and a batch of seven questions."""
    task = vqa()
    torch.manual_seed(0)
    model = task.model().eval()
    samples = task.datasets()["validation"]
    return task, model, task.collate([samples[n] for n in range(7)], torch.Generator())


def test_a_target_is_parsed_into_what_it_was_made_of_and_what_lacks_a_tag_is_not_valid(vqa):
    task = vqa()
    samples, own = task.datasets()["train"], task.writer
    for number in range(10):
        record = samples.records[number]
        found = decoding.parsed([*samples.targets[number].tokens, own.pad], own)
        assert found == decoding.Answer(record.answer, record.kind, record.reasoning, True)
    word = own.numbers(["hình tròn"])[0]
    whole = [own.answer, *word, own.answer_end, own.reasoning, *word, own.reasoning_end, own.end]
    assert decoding.parsed(whole, own).is_valid
    for wrong, answer in (
        (whole[1:], "hình tròn"),  # no tag before it
        ([own.answer, *word, own.end, own.answer_end], "hình tròn"),  # ends too early
        ([own.answer, own.answer_end, own.reasoning, own.reasoning_end], ""),  # an empty answer
        ([*word, *whole], "hình tròn"),  # something before it
        ([], ""),
    ):
        found = decoding.parsed(wrong, own)
        assert not found.is_valid and found.text == answer


def test_answers_are_the_same_in_batches_of_any_size_with_the_loss_of_all_tokens(made):
    _, model, batch = made
    with torch.no_grad():
        found = [decoding.Writer(at_once, 5).write(model, batch, 2) for at_once in (1, 4, 100)]
        losses = decoding.objectives.losses(model(batch), batch["target"])[batch["part"] > 0]
    for written, loss, count in found:
        assert [one[:5] for one in written] == [one[:5] for one in found[0][0]]
        assert count == len(losses) and loss == pytest.approx(float(losses.sum()), rel=1e-4)


def test_where_memory_runs_out_it_goes_on_from_there_but_not_under_shards_where_others_wait(made, monkeypatch):
    _, model, batch = made
    tried, search = [], decoding.search

    def limited(model, encoded, *rest):
        tried.append(len(encoded))
        if len(encoded) > 2:
            raise torch.OutOfMemoryError
        return search(model, encoded, *rest)

    with torch.no_grad():
        want = decoding.Writer(100, 5).write(model, batch, 2)
        monkeypatch.setattr(decoding, "search", limited)
        writer = decoding.Writer(8, 5)
        got = writer.write(model, batch, 2)
        assert tried == [4, 2, 2, 2, 1] and got[0] == want[0] and got[1] == pytest.approx(want[1], rel=1e-4)
        writer.write(model, batch, 2)
        assert tried[5:] == [2, 2, 2, 1]
        monkeypatch.setattr(decoding.sharding, "is_shard", lambda parameter: True)
        with pytest.raises(torch.OutOfMemoryError):
            decoding.Writer(8, 5).write(model, batch, 2)
    assert tried[9:] == [4]
