"""Fine-tunes a chat model of transformers on one file of conversations, by adapters on a frozen base.

Data: JSON of messages, of prompt and answer, or in ShareGPT's form, or tables. The embedded default is the task "call"
(see `generated`): a sentence becomes the JSON call of a small API.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import memory, published
from lib.report.findings import Finding
from lib.report.progress import working
from lib.task import Batch
from lib.task.quantised import Linear4, quantise
from lib.text import aligned
from lib.training.data import to_device
from lib.training.precision import choose_precision
from trainbook import IGNORED, Supervised, padded
from trainbook.supervised import text
from trainbook.supervised.notes import note
from trainbook.supervised.tables import read_text
from workloads.chat import alike, calls, checks, generated, rows, template
from workloads.chat.messages import calls_of
from workloads.chat.rows import Row, Written
from workloads.chat.settings import Settings

_SHOWN = 10
_STRETCH = 90  # rows and answers that are shown; characters of a stretch of a row
_MOST_FACTS = 2**22  # bytes of a configuration of a base
_OTHER = 1200  # characters of a piece of other text
_MOST_OTHER = 24  # pieces whose perplexity is measured
# Heads with more than a product: their logits are computed whole
_OTHER_HEADS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
_DRAWN = "No data was given or found mounted. The generated task is used: a sentence becomes a JSON call."
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LOOKED_AT = 200  # training rows, for marks that the base does not know
_DIFFERENCE = 1e-2  # largest difference, as a share of the largest logit
_SAME = 0.99  # least share of equal first choices: fp16 rounds by 5e-4
# Bytes of merged weights that are compared in fp32; twice as much must fit the host
_IN_FP32 = 4 * 2**30
# Bytes of a file of merged weights, which take memory beside the model
_PIECE = 2 * 2**30


def _json(value: str) -> Any:
    """Parses a JSON object or list; returns None for other texts."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(parsed, dict | list):
        return parsed
    return None


def exact(right: str, written: str) -> float:
    """Returns whether two texts are equal without surrounding space; compares JSON and calls by values."""
    if right.strip() == written.strip():
        return 1.0
    if _has_calls(right):
        return float(calls.are_equal(right, written))
    value = _json(right)
    return float(value is not None and calls.are_same(value, _json(written)))


def called(right: str, written: str) -> float:
    """Returns whether a text makes the right calls, compared by names and values of arguments."""
    wanted = _calls_in(right)
    return float(bool(wanted) and calls.are_same_calls(right, written, wanted))


def _calls_in(answer: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(answer, Written):
        return calls_of(answer.message)
    return ()


def _has_calls(answer: str) -> bool:
    return bool(_calls_in(answer))


def valid(right: str, written: str) -> float:
    """Returns whether a text is JSON, if the right one is."""
    return float(_json(right) is None or _json(written) is not None)


def stopped(right: str, written: str) -> float:
    return float(not isinstance(written, template.Unfinished))


class Chat(Supervised):
    Settings = Settings
    kind = "text"
    sentinels = ("*.jsonl",)
    metrics = (exact, valid, stopped)
    unit = "question"
    constant = "commonest answer"
    selection = ("exact", "max")
    shown = ("exact", "stopped", "loss")
    dials: ClassVar = {"workload.length": (512, 1024, 2048, 4096)}
    findings: Sequence[Finding] = ()  # on the conversations, once they were read
    _before = 0.0  # the untouched base's perplexity of other text
    _crowds_noted = False

    # --- rows ---------------------------------------------------------------------------------------------------------

    def read(self, source: Path | None = None) -> dict[str, Any]:
        """Returns conversations by split. Raises BadInput for data that would train badly."""
        settings = self.settings
        if source:
            parts = self._taken(rows.read(source))
        else:
            sizes = (settings.generated, settings.validation_rows, settings.test_rows)
            parts = self._taken(generated.splits(self.config.seed, *sizes))
        positions = self._kept("positions")
        # A test generates an answer behind its rows
        tested = min(settings.length, positions - settings.answer)
        limits = {"validation": tested, "test": tested, "train": min(settings.length, positions)}
        self.findings = checks.examine(parts, self.template, limits, self._kept("words"))
        checks.refuse(self.findings)
        for part, every in parts.items():
            limit = limits[part]
            parts[part] = [row for row in every if row.answer and self._size(row) <= limit]
            if len(parts[part]) < 0.5 * len(every):
                raise BadInput(
                    f"Most rows in {part} exceed {limit:,} tokens. {checks.ADVICE['too long']}"
                )
        apart = [each for row in parts["train"] for each in self.template.apart(row)]
        train = [*map(self.template.finished, apart)]
        train += self._replayed(len(train), limits["train"])
        return {
            "train": rows.Rows(train, [*map(self._size, train)]),
            "validation": self._answered(parts["validation"][: settings.validation_rows]),
            "test": self._answered(parts["test"][: settings.test_rows]),
        }

    def _replayed(self, count: int, limit: int) -> list[Row]:
        """Returns pieces of the first half of another text for `count` rows, each of at most `limit` tokens."""
        replay = self.settings.other.replay
        if not replay:
            return []
        half = self._other_text[: len(self._other_text) // 2]
        pieces = rows.pieces(half, round(replay * count), self.settings.length)
        return [piece for piece in pieces if self._size(piece) <= limit]

    def _taken(self, parts: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
        """Drops and notes message keys that the template does not read."""
        unread = Counter[str]()
        taken = {}
        for part, every in parts.items():
            taken[part] = [self.template.taken(row, unread) for row in every]
        if unread:
            names = []
            for name, count in unread.most_common(20):
                names.append(f"{printable(name, most=60)} ({count:,} turns)")
            note(f"Keys of messages that the chat template does not read: {', '.join(names)}.")
        return taken

    def _answered(self, some: Sequence[Row]) -> list[Row]:
        """Returns a row for each trained answer, which is scored after its preceding turns."""
        return [self.template.finished(each) for row in some for each in rows.answered(row)]

    def _size(self, row: Row) -> int:
        return len(self.template.encode(row).ids)

    def group(self, sample: Row) -> str | None:
        if sample.answer:
            return sample.conversation or rows.question(sample)
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the template and its encoded rows, which a loader worker makes again."""
        state = super().__getstate__()
        for name in ("template", "_other_text"):
            state.pop(name, None)
        return state

    def read_new(self, source: Path) -> list[Row]:
        """Returns conversations to answer: a file's without answers, or a question a line of a text file."""
        if source.suffix == ".txt":
            lines = read_text(source, printable(source, most=500)).split("\n")
            return [Row((("user", line.strip()),), "") for line in lines if line.strip()]
        files = rows.read_files(source, is_new=True)
        new = [row for of_file in files.values() for row in of_file]
        samples = self._taken({"new": new})["new"]
        for row in samples:
            for name, _, what in self.template.lacking(row, self.template.render(row.whole)):
                raise BadInput(f"{row.origin}: Conversations {what}. {checks.ADVICE[name]}")
        return [row._replace(answer="") for row in samples]

    def describe_data(self) -> str:
        """Describes the source of the rows, the findings in them, and ten rows as the model reads them."""
        train = self.parts["train"].samples
        where = _DRAWN
        if self.source:
            where = f"Data: {printable(self.source)}."
        sizes = []
        for name, part in self.datasets().items():
            sizes.append(f"{_conversations(part.samples):,} conversations in {name}")
        lines = [f"{where} {', '.join(sizes)}.", *self._about_calls(), *self._notes]
        lines.append(self._about_tokens())
        lines += self._about_precision()
        lines += [f"{f.name}: {f.value}. {f.advice}".strip() for f in self.findings]
        lines.append(f"{_SHOWN} rows, with what is trained marked:")
        lines += [self.template.shown(row, _STRETCH) for row in train[:_SHOWN]]
        return "\n".join(lines)

    def _about_tokens(self) -> str:
        train = self.parts["train"].samples
        lengths = sorted(train.lengths)
        median = lengths[len(lengths) // 2]
        trained = sum(sum(self.template.encode(row).trained) for row in train)
        return (
            f"Tokens of a row: median {median}, longest {lengths[-1]}. Of all "
            f"{trained / sum(lengths):.0%} are trained. An answer ends with {printable(self.template.end)}."
        )

    def _about_precision(self) -> Iterator[str]:
        """Yields a sentence on a base in 4 bits on a CPU, which computes in fp32 unless the run says otherwise."""
        is_wide = choose_precision(self.config.training.precision, memory.device()) == "fp32"
        if self.settings.nf4 and is_wide and memory.device().type == "cpu":
            yield (
                "The base lies in 4 bits and computes in fp32 on this CPU. "
                "training.precision: bf16 computes in 16 bits."
            )

    def _about_calls(self) -> Iterator[str]:
        """Yields the numbers of rows with calls and tools, and of scored answers if rows have several."""
        parts = {name: part.samples for name, part in self.datasets().items()}
        every = [row for samples in parts.values() for row in samples]
        with_calls = [row for row in every if row.has_calls]
        with_tools = [row for row in every if row.has_tools]
        if with_calls or with_tools:
            count = _conversations(with_calls)
            yield f"{count:,} conversations have calls, {_conversations(with_tools):,} have tools."
        del parts["train"]
        if any(len(samples) > _conversations(samples) for samples in parts.values()):
            sentences = [f"{_scored(rows)} are scored in {name}." for name, rows in parts.items()]
            yield " ".join(sentences)

    # --- tokenizer and base -------------------------------------------------------------------------------------------

    @cached_property
    def _folder(self) -> Path:
        return self._find_base()

    def _find_base(self) -> Path:
        base = self.settings.base
        located = published.located(base) if base else None
        if located is None:
            raise BadInput(
                f"There is no base {printable(repr(base))}. "
                f"Name in workload.base a folder, a mounted chat model, or one on the hub with the internet on."
            )
        return located[1]

    @cached_property
    def _of_base(self) -> dict[str, Any]:
        """Tokenizer, template, other text, and the sizes that rows must fit; a vision model's are of its text part."""
        other = self.settings.other.text
        facts = _facts(self._folder / "config.json")
        facts |= facts.get("text_config") or {}
        if not isinstance(facts.get("vocab_size"), int):
            raise BadInput(
                f"{printable(self._folder / 'config.json')} names no vocab_size. Copy the base again."
            )
        positions = facts.get("max_position_embeddings", 2**17)
        values = {"positions": positions, "words": facts["vocab_size"]}
        if other:
            values["other"] = Path(other) if Path(other).is_file() else self._folder / other
        return values | template.published(self._folder, self._stops_of_base())

    def _stops_of_base(self) -> list[int]:
        path = self._folder / "generation_config.json"
        stops = None
        if path.is_file():
            stops = _facts(path).get("eos_token_id")
        if isinstance(stops, list):
            return stops
        return [stops] if stops else []

    def _kept(self, name: str) -> Any:
        """Returns a value of the base as the run began with it, otherwise the base's own."""
        if self._learned and name in self._learned:
            return self._learned[name]
        return self._of_base[name]

    @cached_property
    def template(self) -> template.Template:
        names = ("tokenizer", "template", "specials", "stops")
        values = {name: self._kept(name) for name in names}
        date = (self._learned or self._of_base).get("date", "")
        return template.made_of({**values, "date": date})

    def learned(self) -> dict[str, Any]:
        """Returns values kept with the weights, so that a run resumes without its base; {} in a plan."""
        if self._learned is None and not self.is_planned:
            self._learned = dict(self._of_base)
        learned = self._learned or {}
        if learned and "tokenizer" not in learned:  # the run's is damaged: it may be the base's
            self._learned = {**learned, "tokenizer": self._of_base["tokenizer"]}
        return self._learned or {}

    def take_learned(self, values: Mapping[str, Any]) -> None:
        vars(self).pop("template", None)
        super().take_learned(values)

    def model(self) -> nn.Module:
        """Returns the base, fully trained, or frozen (by setting in 4 bits) with adapters."""
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        settings = self.settings
        frozen = self.config.training.frozen_precision
        in_half = settings.nf4 and (self.is_planned or memory.device().type != "cpu")
        dtype = _DTYPES.get(frozen, torch.float16 if in_half else torch.float32)
        base = self.pretrained(settings.base, AutoModelForCausalLM, dtype=dtype)
        if missing := getattr(base, "missing_weights", []):
            raise BadInput(
                f"The base {printable(settings.base)} lacks {len(missing):,} weights of its config.json, "
                f"such as {printable(missing[0])}. They would be random: copy the base again."
            )
        if settings.method == "full":
            return base
        self._note_crowds(base)
        if settings.nf4:
            base = quantise(base, ("lm_head",))
        lora = settings.lora
        options = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            # peft 0.21 asks for a property that transformers 5.23 has renamed
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            return get_peft_model(base.requires_grad_(False), options)

    def _note_crowds(self, base: Any) -> None:
        """Notes, once, marks in trained answers that the base cannot tell from other tokens."""
        rows = base.get_output_embeddings().weight
        if self._crowds_noted or rows.is_meta or "parts" not in vars(self):
            return
        self._crowds_noted = True
        added = self.template.tokenizer.added_tokens_decoder
        some = self.parts["train"].samples[:_LOOKED_AT]
        trained = {token for row in some for token in self.template.encode(row).answer}
        marks = {number: str(added[number]) for number in sorted(trained & added.keys())}
        if sentence := alike.about(rows.detach(), marks):
            note(sentence)

    # --- training -----------------------------------------------------------------------------------------------------

    def example(self) -> Row:
        return Row((("user", "x"),), "y")

    def example_batch(self, size: int, device: torch.device) -> Batch:
        ids = torch.zeros(size, self.settings.length, dtype=torch.long, device=device)
        return {"ids": ids, "labels": ids.clone()}

    def batch(self, samples: list[Row], training: bool) -> Batch:
        """Returns tokens padded on the right with the next ones as labels; for a test, prompts padded on the left."""
        encoded = [self.template.encode(row) for row in samples]
        ids = padded([row.ids[:-1] for row in encoded], 0, sys.maxsize)
        labels = padded([row.labels[1:] for row in encoded], IGNORED, sys.maxsize)
        batch = {"ids": ids, "labels": labels}
        if training:
            return batch
        return {**batch, **self._prompts(samples)}

    def _prompts(self, samples: Sequence[Row]) -> Batch:
        prompts = [self.template.prompt(row.turns) for row in samples]
        prompt = padded([ids[::-1] for ids in prompts], 0, sys.maxsize)
        is_prompt = padded([[1] * len(ids) for ids in prompts], 0, sys.maxsize)
        return {"prompt": prompt.flip(1), "is_prompt": is_prompt.flip(1)}

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Returns (B, L, D) hidden states and the head, or (B, L, words) logits of a head with scaling.

        Passes no mask: no token attends to the padding on its right, and transformers would wait to read the mask.
        """
        whole = plain(model)
        inputs = {"input_ids": batch["ids"], "use_cache": False}
        if any(getattr(whole.config, name, None) not in (None, 1, 1.0) for name in _OTHER_HEADS):
            return whole(**inputs).logits
        return getattr(whole, whole.base_model_prefix)(**inputs)[0], whole.get_output_embeddings()

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def write(self, model: nn.Module, batch: Batch, beams: int) -> list[str]:
        stops = self.template.stops
        inputs: dict[str, Any] = {
            "input_ids": batch["prompt"],
            "attention_mask": batch["is_prompt"],
        }
        options: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "top_k"))
        options |= {"eos_token_id": stops, "pad_token_id": stops[0]}
        ids = text.generate(model, 1, self.settings.answer, **inputs, **options)
        return [*map(self.template.decode, ids.tolist())]

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """Returns losses, metrics, and the perplexity of other text; for a test also the untouched base's."""
        scores = super().evaluate(model, loader)
        if not self.settings.other.text:
            return scores
        scores |= {"other_perplexity": self._perplexity(model)}
        if loader.dataset.name == "test" and self._before:
            scores |= {"other_perplexity_of_base": self._before}
        return scores

    @cached_property
    def _other_text(self) -> str:
        return self._kept("other").read_text("utf-8")

    def _perplexity(self, model: nn.Module) -> float:
        whole = self._other_text
        device = next(model.parameters()).device
        half = whole[len(whole) // 2 :]
        pieces = min(_MOST_OTHER, max(1, len(half) // _OTHER))
        total = 0.0
        count = 0
        for row in rows.pieces(half, pieces, _OTHER):
            batch = to_device(self.batch([row], True), device)
            total += float(self.loss(model, batch)[0]["loss"].detach())
            count += int((batch["labels"] != IGNORED).sum())
        return float(np.exp(total / max(1, count)))

    def _neighbours(self) -> rows.Neighbours:
        train = [row for row in self.parts["train"].samples if row.answer]
        return rows.Neighbours(self._answered(train))

    def columns(self, judged: Any) -> dict[str, float]:
        """Returns the share of right calls among the answers with calls."""
        share = _share_called(judged.true, judged.guess)
        if share is None:
            return {}
        return {"call": share}

    def baselines(self) -> dict[str, Any]:
        """Returns the answers of the nearest training rows."""
        near = self._neighbours()
        answers = [near.replaced(row) for row in self.parts["test"].samples]
        return {"nearest, values replaced": np.array(answers, object)}

    def beside(self, model: nn.Module, loader: Any) -> dict[str, np.ndarray]:
        """Returns the untouched base's answers, also after the nearest training rows; {} without the base.

        Reloads the base if all weights were trained.
        """
        base = model
        near = self._neighbours()
        shots = self.settings.shots
        room = self._kept("positions") - self.settings.answer

        def fits(row: Row) -> bool:
            return len(self.template.prompt(row.turns)) <= room

        def prompted(row: Row) -> Row:
            return near.prompted(row, shots, fits)

        if not hasattr(model, "disable_adapter"):
            try:
                self._find_base()  # without which a model of its sizes would be made
                base = type(self)(self.config).model().eval()
            except BadInput as error:
                print(f"The test goes without the untouched base: {error}")
                return {}
            base = base.to(next(model.parameters()).device)
        with working("The untouched base answers"), getattr(base, "disable_adapter", nullcontext)():
            if self.settings.other.text:
                self._before = self._perplexity(base)
            return {
                "untouched base": self._written(base, loader, lambda row: row),
                f"base, {shots} examples": self._written(base, loader, prompted),
            }

    def _written(self, model: nn.Module, loader: Any, prompt: Callable[[Row], Row]) -> np.ndarray:
        """Returns (samples) answers to a loader's samples, which may be the first ones of its set."""
        answers = list[str]()
        samples = loader.dataset.samples
        for batch in loader:
            ids = batch["ids"]
            asked = samples[len(answers) : len(answers) + len(ids)]
            prompts = to_device(self._prompts([*map(prompt, asked)]), ids.device)
            answers += text.in_parts(self, model, prompts, 1, self.write)
        return np.array(answers, object)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes the tables of `Supervised`; returns its text, and ten answers side by side."""
        if not self._tested:
            return ""
        paragraphs = [super().report(metrics, folder)]
        judged = [*self._tested.values()][-1]
        answers = {"tuned": judged.guess, **self._beside, **self._guesses}
        paragraphs.append("\n".join(self._about_scores(judged.true, answers)))
        paragraphs += self._about_cut(answers)
        for number, row in enumerate(self.parts["test"].samples[:_SHOWN]):
            cells = {"question": row.question, "right": row.answer}
            cells |= {name: texts[number] for name, texts in answers.items()}
            lines = [[name, printable(text, most=160) or "-"] for name, text in cells.items()]
            paragraphs.append(aligned(lines, left={0, 1}))
        return "\n\n".join(paragraphs)

    def _about_scores(self, right: Any, answers: Mapping[str, Any]) -> Iterator[str]:
        """Yields the numbers of scored answers and conversations, and each method's share of right calls."""
        yield f"Scored: {_scored(self.parts['test'].samples[: len(right)])}."
        count = sum(map(_has_calls, right))
        if not count:
            return
        shares = {name: _share_called(right, written) for name, written in answers.items()}
        names = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
        yield f"{count:,} of them have calls. Right by name and arguments: {names}."

    def _about_cut(self, answers: Mapping[str, Any]) -> Iterator[str]:
        """Yields a sentence on the answers that `workload.answer` has cut, by method."""
        cut = []
        for name, texts in answers.items():
            number = sum(isinstance(text, template.Unfinished) for text in texts)
            if number:
                cut.append(f"{name} {number:,}")
        if cut:
            yield (
                f"Cut after {self.settings.answer:,} tokens, of {len(texts):,} answers: {', '.join(cut)}. "
                "A larger workload.answer judges these whole."
            )

    # --- prediction and export ----------------------------------------------------------------------------------------

    def answers(self, models: list[nn.Module], samples: list[Row]) -> list[Mapping[str, Any]]:
        if len(models) > 1:
            raise BadInput(
                "Several tuned models cannot answer together. Give the archive of one run."
            )
        model = models[0]
        batch = to_device(self._prompts(samples), next(model.parameters()).device)
        rows: list[Mapping[str, Any]] = []
        for answer in text.in_parts(self, model, batch, 1, self.write):
            rows.append({"prediction": str(answer), "stopped": int(stopped("", answer))})
        return rows

    def export(self, model: Any, folder: Path) -> None:
        """Writes the adapter and merged weights, and verifies these. Raises BadInput."""
        has_adapter = hasattr(model, "disable_adapter")
        tokenizer = self.template.tokenizer
        merged = folder / "merged"
        if has_adapter:
            model.save_pretrained(folder / "adapter")
            tokenizer.save_pretrained(folder / "adapter")
        if self.settings.merge or not has_adapter:
            write_merged(model, merged, self.template.stops)
            tokenizer.save_pretrained(merged)
            samples = self.parts["test"].samples[:_SHOWN]
            print(prove(model, merged, [self.template.encode(row).ids for row in samples]))


def _share_called(right: Sequence[str], written: Sequence[str]) -> float | None:
    """Returns the share of right calls among the answers with calls; None without such answers."""
    shares = [called(*pair) for pair in zip(right, written, strict=False) if _has_calls(pair[0])]
    if not shares:
        return None
    return sum(shares) / len(shares)


def _facts(path: Path) -> dict[str, Any]:
    """Reads a configuration of a base. Raises BadInput unless it is a JSON object."""
    try:
        return untrusted.objects(untrusted.read(path, _MOST_FACTS))
    except (OSError, BadInput) as error:
        raise BadInput(
            f"{printable(path)} cannot be read ({error}). Copy the base again."
        ) from None


def _conversations(samples: Iterable[Row]) -> int:
    """Counts conversations, each of which may give several samples, and pieces of replayed text."""
    return sum(1 for row in samples if not row.number)


def _scored(samples: Sequence[Row]) -> str:
    return f"{len(samples):,} answers of {_conversations(samples):,} conversations"


# --- merged weights ---------------------------------------------------------------------------------------------------


def plain(model: Any) -> Any:
    """Unwraps the transformers model of a peft model."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields name and merged weight, on the CPU, with adapters added in fp32."""
    seen = set[int]()
    for path, module in plain(model).named_modules():
        if "lora_" in path or path.endswith(".base_layer"):
            continue
        layer = module.base_layer if hasattr(module, "lora_A") else module
        for name, weight in layer.named_parameters(recurse=False):
            if id(weight) in seen or (name == "scales" and isinstance(layer, Linear4)):  # or tied
                continue
            seen.add(id(weight))
            if isinstance(layer, Linear4) and name == "weight":
                value = layer.unpacked(torch.float32).clone()
            else:
                value = weight.detach().float().clone()
            if hasattr(module, "lora_A") and name == "weight":
                for key, down in module.lora_A.items():
                    up = module.lora_B[key]
                    product = up.weight.float() @ down.weight.float()
                    value += module.scaling[key] * product
            yield f"{path}.{name}", value.cpu()


@torch.no_grad()
def write_merged(model: nn.Module, folder: Path, stops: Sequence[int]) -> None:
    """Streams merged weights in fp16 into files of at most 2 GiB, beside their configuration."""
    piece = dict[str, Tensor]()
    files = dict[str, str]()
    folder.mkdir()

    def write() -> None:
        name = f"model-{len({*files.values()}) + 1:05d}.safetensors"
        save_file(piece, folder / name, metadata={"format": "pt"})
        files.update(dict.fromkeys(piece, name))
        piece.clear()

    for name, value in merged(model):
        size = sum(weight.nbytes for weight in piece.values())
        if piece and size + 2 * value.numel() > _PIECE:
            write()
        piece[name] = value.half()
    write()
    names = {*files.values()}
    if len(names) > 1:
        index = json.dumps({"metadata": {}, "weight_map": files})
        (folder / "model.safetensors.index.json").write_text(index, "utf-8")
    else:
        (folder / names.pop()).rename(folder / "model.safetensors")
    config = {**plain(model).config.to_dict(), "dtype": "float16"}
    config.pop("quantization_config", None)
    ends = {"eos_token_id": stops, "pad_token_id": stops[0]}
    for path, values in (("config.json", config), ("generation_config.json", ends)):
        (folder / path).write_text(json.dumps(values, indent=1, default=str), "utf-8")


@torch.no_grad()
def prove(model: nn.Module, folder: Path, rows: Sequence[Sequence[int]]) -> str:
    """Reloads merged weights and compares logits with base and adapter; returns a sentence.

    Raises BadInput if logits differ by over 1 % of the largest, or more than 1 % of first choices differ.
    """
    from transformers import AutoModelForCausalLM

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    dtype = torch.float32 if size < _IN_FP32 else torch.float16
    with published.quiet():
        other = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        other.eval()
    device = next(model.parameters()).device
    widest = 0.0
    difference = 0.0
    same = 0
    count = 0
    for row in rows:
        ids = torch.tensor([row])
        first = model(input_ids=ids.to(device)).logits[0].float().cpu()
        second = other(input_ids=ids).logits[0].float()
        is_same = first.argmax(-1) == second.argmax(-1)
        widest = max(widest, float(first.abs().max()))
        difference = max(difference, float((first - second).abs().max()))
        same += int(is_same.sum())
        count += len(row)
    sentence = f"logits differ by at most {difference / widest:.1e} of the largest, {same:,} of {count:,} choices agree"
    if difference > _DIFFERENCE * widest or same < _SAME * count:
        raise BadInput(
            f"The merged model is not the trained one: {sentence}. Use the adapter with its base."
        )
    return f"Merged in fp16 and read again: {sentence}."
