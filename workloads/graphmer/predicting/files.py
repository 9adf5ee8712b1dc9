"""Writes predictions: a table, JSON lines, the completed graph as data that training reads, and a summary."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib.machine import disk
from lib.text import aligned
from workloads.codegraph import records
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.graphmer.predicting.calibration import SURE
from workloads.graphmer.predicting.joined import Joined
from workloads.graphmer.predicting.references import UNRESOLVED

COLUMNS = (
    "head", "relation", "tail", "probability", "where", "asked", "counts_tail", "counts_probability", "file", "line",
)  # fmt: skip
TABLE, JSON_LINES, SUMMARY = "predictions.csv", "references.jsonl", "summary.txt"
_WHERE = ("this tree", "outside", "not in this tree")
_EXAMPLES = 8
_LIKELY = 0.5


@dataclass(frozen=True)
class Answer:
    """A reference: what is asked, where it stands, and what is answered.

    `tails` are (relation, entity, probability), the most probable first. `inside` is the probability that it is one of
    the tree's own entities, and `none` that it is none of those that are known, of the tree or of training. `counted`
    is the first answer of the counts alone, with its probability.
    """

    asked: Triple
    tails: list[tuple[str, str, float]]
    inside: float
    none: float
    counted: tuple[str, float]

    @property
    def is_answered(self) -> bool:
        """Whether an entity is more probable than that none is right."""
        return bool(self.tails) and self.tails[0][2] > self.none


@dataclass(frozen=True)
class Predictions:
    """The answers about a graph, and what of its known facts was answered rightly when it was hidden."""

    graph: Graph
    joined: Joined
    answers: Sequence[Answer]
    checked: Mapping[str, float]

    def where(self, tail: str) -> str:
        """Returns whether an answer is an entity of this tree, one outside of it that training knows, or neither."""
        return _WHERE[2] if not tail else _WHERE[not self.joined.is_in_tree(tail)]

    def row(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a row of the table: the most probable one, or none."""
        asked, (counted, chance) = answer.asked, answer.counted
        relation, tail, probability = answer.tails[0] if answer.is_answered else (asked.relation, "", answer.none)
        place = (self.where(tail), asked.tail, counted, round(chance, 4), asked.file, asked.line)
        return dict(zip(COLUMNS, (asked.head, relation, tail, round(probability, 4), *place), strict=True))

    def line(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a JSON line, with all that it may be."""
        asked = answer.asked
        tails = [
            {"relation": relation, "tail": tail, "where": self.where(tail), "probability": round(p, 4)}
            for relation, tail, p in answer.tails
        ]
        counted = {"tail": answer.counted[0], "probability": round(answer.counted[1], 4)}
        place = {"head": asked.head, "relation": asked.relation, "file": asked.file, "line": asked.line}
        others = {"not_in_this_tree": round(1 - answer.inside, 4), "unknown": round(answer.none, 4)}
        return {**place, "name": asked.tail.partition("::")[2], "answers": tails, **others, "counts": counted}

    @property
    def likely(self) -> list[Answer]:
        """The answers that are likelier than all others."""
        return [answer for answer in self.answers if answer.is_answered and answer.tails[0][2] >= _LIKELY]

    def text(self, out: Path | None) -> str:
        """Returns a summary: what was asked, how much was answered, how good that is on this tree, and examples."""
        graph, number = self.graph, len({triple.file for triple in self.graph.triples})
        unresolved = sum(graph.entities[triple.tail].type == UNRESOLVED for triple in graph.triples)
        about = "Every name that it calls, inherits from or is decorated with could be followed: nothing to resolve."
        if unresolved:
            about = f"{unresolved:,} of them are references that could not be followed; asked is which entity of the "
            about += "name is meant."
        lines = [f"The tree has {len(graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}. {about}"]
        lines.append(aligned(self._numbers(), left=(0,)))
        lines += [self._quality()] if self.checked else []
        likely = sorted(self.likely, key=lambda answer: (-answer.tails[0][2], answer.asked.key))
        evenly = [likely[n * (len(likely) - 1) // max(1, _EXAMPLES - 1)] for n in range(_EXAMPLES) if likely]
        rows = [self.row(answer) for answer in {answer.asked.key: answer for answer in evenly}.values()]
        if rows:
            shown = [[f"{r['file']}:{r['line']}", r["relation"], r["asked"], r["tail"]] for r in rows]
            chances = [[f"{r['probability']:.3f}"] for r in rows]
            table = [["file:line", "relation", "asked", "answer", "probability"]]
            table += [cells + chance for cells, chance in zip(shown, chances, strict=True)]
            lines += ["Some answers, from the surest to the least sure one above one half:"]
            lines += [aligned(table, left=(0, 1, 2, 3))]
        if out is not None:
            lines.append(
                f"{out / TABLE} has all answers, {JSON_LINES} says more of each. The completed graph is "
                f"{records.TRIPLES} and {records.ENTITIES}; what was predicted has its probability there."
            )
        return "\n".join(lines)

    def _numbers(self) -> list[list[str]]:
        """Returns the lines of a table: how many answers there are of each kind, and how sure they are."""
        by_kind: list[tuple[str, list[float]]] = [
            ("references to an entity of this tree", []),
            ("references to something known outside", []),
            ("references to nothing that is known", []),
        ]
        for answer in self.answers:
            tail, chance = answer.tails[0][1:] if answer.is_answered else ("", answer.none)
            by_kind[_WHERE.index(self.where(tail))][1].append(chance)
        lines = [["", "all", f"p >= {SURE:g}", f"p >= {_LIKELY:g}"]]
        for name, values in by_kind:
            lines.append([name, *(f"{sum(value >= least for value in values):,}" for least in (0, SURE, _LIKELY))])
        return lines

    def _quality(self) -> str:
        """Returns a sentence on how well known references of this tree were answered, each hidden in its turn."""
        checked = self.checked
        sure = f", and {checked['right of the sure']:.1%} of those given {SURE:g} or more" if checked["sure"] else ""
        every, alike = checked["number of all"], ""
        if checked["number"] < every:
            alike = f" like x.get(), as most unresolved ones are; of all {every:,} it is {checked['right of all']:.1%}"
        return (
            f"Expect {checked['right']:.1%} of the unresolved references to be answered rightly{sure}: so many are of "
            f"{checked['number']:,} known references of this tree{alike}. Each was hidden in its turn."
        )


def write(predictions: Predictions, out: Path) -> None:
    """Writes the completed graph, JSON lines, the table and the summary into a folder."""
    graph, joined = predictions.graph, predictions.joined
    triples, chances = {triple.key: triple for triple in graph.triples}, {}
    for answer in predictions.likely:
        relation, tail, chance = answer.tails[0]
        triple = replace(answer.asked, relation=relation, tail=tail)
        triples[triple.key], chances[triple.key] = triple, chance
    more = {tail: Entity(tail, joined.type_of(tail)) for _, _, tail in triples if tail not in graph.entities}
    ordered = [triples[key] for key in sorted(triples)]
    records.write(replace(graph, triples=ordered, entities={**graph.entities, **more}), out, chances)
    records.write_lines(out / JSON_LINES, map(predictions.line, predictions.answers))
    with disk.whole(out / TABLE) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        rows.writerows(map(predictions.row, predictions.answers))
    disk.write_text(out / SUMMARY, predictions.text(None) + "\n")
