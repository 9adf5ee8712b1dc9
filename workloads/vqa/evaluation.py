"""Answers judged beside rules that see no picture: by question type, with intervals over pictures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.report.result import write_table
from lib.scores import Interval, concluded, intervals
from lib.text import aligned
from workloads.vqa import scoring
from workloads.vqa.records import OTHER, Record
from workloads.vqa.rules import Rules

METRICS = ("exact", "token_f1", "rouge_l", "valid")
MODEL = "the model"
_MANY, _FEWEST = 20, 20  # of more types than these, those of fewer questions share a row
_DRAWS = 2000
_AT_ONCE = 100  # draws
_SEED = 1  # of the draws: two methods on the same records meet the same ones


def scores(records: Sequence[Record], predicted: Sequence[str], valid: Sequence[bool]) -> np.ndarray:
    """Returns (records, METRICS): exact match, token F1, ROUGE-L, and whether the output had the asked form."""
    judges = (scoring.exact, scoring.token_f1, scoring.rouge_l)
    rows = [
        [*(judge(answer, one.answer) for judge in judges), float(is_valid)]
        for one, answer, is_valid in zip(records, predicted, valid, strict=True)
    ]
    return np.array(rows).reshape(-1, len(METRICS))


def judge(values: np.ndarray, records: Sequence[Record]) -> list[Interval]:
    """Returns the mean of each column of (records, columns) with its interval over draws of whole pictures."""
    _, group = np.unique([one.picture for one in records], return_inverse=True)
    sums = np.zeros((group.max() + 1, values.shape[1] + 1))
    np.add.at(sums, group, np.concatenate([values, np.ones((len(values), 1))], 1))
    draw, pictures = np.random.default_rng(_SEED), len(sums)
    means = []
    for _ in range(_DRAWS // _AT_ONCE):
        totals = draw.multinomial(pictures, np.full(pictures, 1 / pictures), _AT_ONCE) @ sums
        means.append(totals[:, :-1] / totals[:, -1:])
    return intervals(values.mean(0), np.concatenate(means), pictures)


def metrics(
    records: Sequence[Record], predicted: Sequence[str], valid: Sequence[bool], rules: Rules | None = None
) -> dict[str, float]:
    """Returns the mean of METRICS, and `exact_x` of each question type x."""
    values = scores(records, predicted, valid)
    found = dict(zip(METRICS, values.mean(0).tolist(), strict=True))
    kinds = np.array(types(records, rules))
    return found | {f"exact_{kind}": float(values[kinds == kind, 0].mean()) for kind in sorted(set(kinds))}


def baseline(records: Sequence[Record], rules: Rules) -> dict[str, float]:
    """Returns METRICS but the form as the strongest question-only rule reaches them."""
    name, ruled = strongest(records, rules)
    return dict(zip(METRICS[:3], ruled[name].mean(0).tolist(), strict=False))


def strongest(records: Sequence[Record], rules: Rules) -> tuple[str, dict[str, np.ndarray]]:
    """Returns the rule with the most exact answers to these records, and (records, METRICS) scores of all."""
    right = [True] * len(records)
    found = {name: scores(records, answers, right) for name, answers in rules.answers(records).items()}
    return max(found, key=lambda name: found[name][:, 0].mean()), found


def types(records: Sequence[Record], rules: Rules | None) -> list[str]:
    """Returns the question type of each record; of more than 20, those of fewer questions than 20 are together."""
    kinds = [(rules.type_of(one) if rules else one.kind) or OTHER for one in records]
    counts = Counter(kinds)
    return [kind if len(counts) <= _MANY or counts[kind] >= _FEWEST else OTHER for kind in kinds]


def report(
    records: Sequence[Record], predicted: Sequence[str], valid: Sequence[bool], rules: Rules, folder: Path
) -> str:
    """Writes evaluation.csv and answers.csv into a folder; returns the tables as text."""
    name, ruled = strongest(records, rules)
    rows = {**ruled, MODEL: scores(records, predicted, valid)}
    judged = {method: judge(values, records) for method, values in rows.items()}
    gains = {method: judge(values[:, :1] - ruled[name][:, :1], records)[0] for method, values in rows.items()}
    kinds = types(records, rules)
    write_table(folder / "evaluation.csv", _csv(rows, judged, gains, kinds))
    answers = [
        [one.file, one.number, Path(one.image).name, kind, one.question, one.answer, answer, int(is_valid), rule]
        for one, answer, is_valid, rule, kind in zip(
            records, predicted, valid, rules.answers(records)[name], kinds, strict=True
        )
    ]
    head = ["file", "record", "picture", "type", "question", "right", "answer", "valid", "rule"]
    write_table(folder / "answers.csv", [head, *answers])
    table = [["", "exact match", "token F1", "ROUGE-L", "valid form", f"exact above {name!r}"]]
    for method, each in judged.items():
        gain = "" if method == name else gains[method].signed
        table.append([method, *map(str, each[:3]), f"{each[3].value:.3f}" if method == MODEL else "", gain])
    by_type = [["question type", "questions", f"exact of {MODEL}", f"of {name!r}"]]
    for kind, count in Counter(kinds).most_common():
        chosen = [place for place, other in enumerate(kinds) if other == kind]
        own = judge(rows[MODEL][chosen, :1], [records[place] for place in chosen])[0]
        by_type.append([kind, f"{count:,}", str(own), f"{rows[name][chosen, 0].mean():.3f}"])
    pictures = len({one.picture for one in records})
    return (
        f"{aligned(table, left={0})}\nIn brackets: 95 % of {_DRAWS:,} draws of the {pictures:,} pictures; gains are "
        f"paired. Rules see the question alone.\n"
        f"{concluded('The model', name, 'exact match', gains[MODEL], pictures, 'picture')}\n\n"
        f"{aligned(by_type, left={0})}"
    )


def _csv(rows: Mapping[str, np.ndarray], judged: Mapping[str, Any], gains: Mapping[str, Any], kinds: Any) -> list[Any]:
    names, own = sorted(set(kinds)), np.array(kinds)
    bounds = [f"{metric}{end}" for metric in (*METRICS, "gain") for end in ("", "_low", "_high")]
    table: list[Any] = [["method", *bounds, *(f"exact_{kind}" for kind in names)]]
    for method, values in rows.items():
        cells = [value for one in (*judged[method], gains[method]) for value in (one.value, one.low, one.high)]
        cells += [float(values[own == kind, 0].mean()) for kind in names]
        table.append([method, *(f"{cell:.6f}" for cell in cells)])
    return table
