"""How the bench of vqa changes pictures and sums runs up."""

from tests.bench import bench_vqa
from tests.workloads.vqa.files import record


def test_every_question_is_asked_about_another_picture_and_those_of_one_about_the_same():
    asked = [record(n, picture=n // 2) for n in range(10)]
    found = bench_vqa.shuffled(asked)
    for one, other in zip(asked, found, strict=True):
        assert one.picture != other.picture and one.question == other.question
    assert [found[n].picture for n in range(0, 10, 2)] == [found[n].picture for n in range(1, 10, 2)]
    assert len({one.image for one in found}) == 5


def run(exact, **more):
    return {"metrics": {"exact": exact, "exact_low": 0.0, "exact_high": 1.0, "gain_low": exact - 0.6, **more}}
