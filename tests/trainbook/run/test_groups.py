"""Which files belong together, which groups are whole, and which is the newest."""

import pickle
import random

import pytest

from trainbook.run import groups


def write(folder, *names, torn=()):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(name))
    for name in torn:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(name)[:-3])


def whole(folder, settled=None):
    files = groups.listing(folder)
    is_settled = (lambda path: True) if settled is None else settled.__contains__
    found = groups.whole_groups(folder, files, is_settled)
    return sorted(path for paths in found.values() for path in paths)


def test_a_torn_file_is_no_checkpoint_and_the_one_beside_it_stays(tmp_path):
    write(tmp_path, "best.pt", torn=["last.pt"])
    assert whole(tmp_path) == ["best.pt"]


def test_a_model_without_the_optimizer_that_the_pair_before_it_has_is_not_whole(tmp_path):
    write(tmp_path, "run/w/model_3.pt", "run/w/optim_3.pt", "run/w/model_4.pt")
    assert whole(tmp_path) == ["run/w/model_3.pt", "run/w/optim_3.pt"]


def test_a_folder_that_lacks_a_file_of_the_folder_before_it_is_not_whole(tmp_path):
    write(tmp_path, "checkpoint-50/model.pt", "checkpoint-50/optimizer.pt")
    write(tmp_path, "checkpoint-100/model.pt")
    assert whole(tmp_path) == ["checkpoint-50/model.pt", "checkpoint-50/optimizer.pt"]


def test_names_of_other_forms_in_one_folder_are_no_group(tmp_path):
    """Lightning's: the best by epoch and score, and the last ones by version."""
    names = ["epoch=04-val_acc=0.925.ckpt", "epoch=05-val_acc=0.893.ckpt", "last-v1.ckpt"]
    write(tmp_path, *names, "last.ckpt", "last-v2.ckpt")
    assert whole(tmp_path, settled={"last.ckpt", names[0], names[2]}) == sorted(
        [*names, "last-v2.ckpt", "last.ckpt"]
    )


def test_a_group_that_never_had_a_file_of_the_first_one_is_whole(tmp_path):
    write(tmp_path, "step-1/model.pt", "step-1/optim.pt", "step-2/model.pt", "step-3/model.pt")
    assert "step-2/model.pt" in whole(tmp_path)


def test_a_folder_with_a_torn_file_is_not_whole(tmp_path):
    write(tmp_path, "checkpoint-50/model.pt", torn=["checkpoint-50/optimizer.pt"])
    assert whole(tmp_path) == []


def test_the_first_group_counts_when_it_has_settled_and_an_older_one_always(tmp_path):
    write(tmp_path, "step-1/model.pt", "step-1/optim.pt")
    assert whole(tmp_path, settled={"step-1/model.pt"}) == []
    write(tmp_path, "step-2/model.pt", "step-2/optim.pt")
    both = ["step-1/model.pt", "step-1/optim.pt", "step-2/model.pt", "step-2/optim.pt"]
    assert whole(tmp_path, settled=set()) == both, "the second has the shape of the first"


def test_a_folder_with_torn_or_missing_json_is_not_whole_and_a_log_in_no_such_folder_is_none(
    tmp_path,
):
    for step in (1, 2, 3):
        write(tmp_path, f"checkpoint-{step}/model.pt")
        (tmp_path / f"checkpoint-{step}" / "state.json").write_text('{"step": 1}')
    (tmp_path / "checkpoint-2" / "state.json").write_text('{"step')
    (tmp_path / "checkpoint-3" / "state.json").unlink()
    write(tmp_path, "last.pt")
    (tmp_path / "log.json").write_text('{"loss')
    assert whole(tmp_path) == ["checkpoint-1/model.pt", "last.pt"]


def test_json_alone_is_no_checkpoint(tmp_path):
    write(tmp_path, torn=["run-1/model.pt"])
    (tmp_path / "run-1" / "config_3.json").write_text("{}")
    assert whole(tmp_path) == []


@pytest.mark.parametrize(
    ("entries", "newest"),
    [
        (["checkpoint-50", "checkpoint-100"], "checkpoint-100"),
        (["last.ckpt", "last-v1.ckpt", "last-v2.ckpt"], "last-v2.ckpt"),
        (["last-v1.ckpt", "last.ckpt"], "last.ckpt"),
        (["20260101-120000-unet", "20260101-130000-unet"], "20260101-130000-unet"),
        (["best.pt", "last.pt"], "last.pt"),
        (["a-9.pt", "a-10.pt", "z.pt"], "z.pt"),
    ],
    ids=[
        "numbers",
        "versions",
        "a version of an earlier session",
        "times in names",
        "times",
        "both",
    ],
)
def test_the_newest_is_by_number_among_alike_names_and_by_time_among_others(entries, newest):
    times = {entry: float(number) for number, entry in enumerate(entries)}
    mixed = random.Random(0).sample(entries, len(entries))
    assert groups.newest_entry(mixed, times) == newest


def test_a_number_wins_over_the_time_among_alike_names_since_a_mount_may_change_times():
    times = {"step-9": 5.0, "step-10": 1.0}
    assert groups.newest_entry(times, times) == "step-10"


def test_a_pattern_keeps_the_names_that_it_matches():
    times = {"last.pt": 2.0, "best.pt": 1.0}
    assert groups.newest_entry(times, times, "best*") == "best.pt"
    assert groups.newest_entry(times, times, "other*") is None
