"""The task on a tiny base: batches, losses, generation, what stands beside it, export and resuming."""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from lib.errors import BadInput
from lib.machine import published
from lib.task import load_config, load_task
from tests.conftest import ROOT
from tests.workloads.chat.conftest import CONFIG, calls, tokenizer_of, write_base, write_rows
from trainbook.commands import main as command
from trainbook.doctor import rehearsal
from trainbook.launch import checks, ensemble
from workloads.chat import exact, plain, prove, rows, stopped, valid, write_merged
from workloads.chat.rows import Row


def drawn(task, seed=0):
    """The task's model with adapters that change its answers."""
    torch.manual_seed(seed)
    model = task.model().eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model


def test_the_loss_is_the_models_own_over_the_trained_tokens(chat):
    task = chat()
    model = drawn(task)
    rows = calls(5)
    loss = task.loss(model, batch := task.labelled(rows, True))[0]["loss"]
    encoded = [task.template.encode(row) for row in rows]
    sums = []
    for each in encoded:  # one by one, without padding
        labels = [
            token if is_trained else -100 for token, is_trained in zip(*each[:2], strict=True)
        ]
        own = model(input_ids=torch.tensor([each.ids]), labels=torch.tensor([labels]))
        sums.append(own.loss * (sum(each.trained)))
    torch.testing.assert_close(loss, sum(sums), rtol=1e-5, atol=0)
    assert task.count(batch) == {"loss": sum(sum(each.trained) for each in encoded)}


def test_a_batch_of_prompts_padded_on_the_left_has_the_logits_and_the_answers_of_single_ones(chat):
    task = chat()
    model = drawn(task)
    rows = calls(6)
    batch = task.labelled(rows)
    together = model(input_ids=batch["prompt"], attention_mask=batch["is_prompt"]).logits[:, -1]
    for number, row in enumerate(rows):
        alone = task.labelled([row])
        assert alone["prompt"].shape[1] <= batch["prompt"].shape[1]
        logits = model(input_ids=alone["prompt"]).logits[0, -1]
        torch.testing.assert_close(together[number], logits, rtol=1e-5, atol=1e-5)
        assert task.write(model, alone, 1) == [task.write(model, batch, 1)[number]]


def test_answers_are_compared_as_json_where_they_are_json():
    assert exact('{"a": 1, "b": "x"}', '{"b":"x","a":1}')
    assert not exact('{"a": 1}', '{"a": "1"}')
    assert exact("Yes ", "Yes")
    assert not exact("Yes", "yes")
    assert valid('{"a": 1}', "[2]")
    assert not valid('{"a": 1}', '{"a": 1')
    assert valid("yes", "no")
    assert stopped("x", "x")


def test_a_frozen_base_has_adapters_in_fp32_and_full_training_has_none(chat):
    model = chat().model()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name and p.dtype == torch.float32 for name, p in trained.items())
    linear = [name for name, m in plain(model).named_modules() if hasattr(m, "lora_A")]
    assert len(linear) == 2 * 7, "q, k, v, o, gate, up and down of two layers"
    assert all(p.requires_grad for p in chat({"workload.method": "full"}).model().parameters())


def test_rows_beyond_the_length_are_left_out_and_other_text_is_replayed(chat, tmp_path):
    (tmp_path / "other.txt").write_text("some words of another kind. " * 200)
    other = {"workload.other.text": str(tmp_path / "other.txt"), "workload.other.replay": 0.5}
    task = chat({"workload.length": 160, **other})
    train = task.parts["train"].samples
    lengths = [len(task.template.encode(row).ids) for row in train if row.answer]
    assert max(lengths) <= 160
    assert len(lengths) < 40
    assert train.lengths[: len(lengths)] == lengths
    texts = [row for row in train if not row.answer]
    assert len(texts) == round(0.5 * len(lengths))
    assert all(row.turns[0][0] == "text" for row in texts)
    encoded = task.template.encode(texts[0])
    assert all(encoded.trained[1:])
    assert task.template.tokenizer.decode(encoded.ids) == texts[0].turns[0][1]
    with pytest.raises(BadInput, match="Most rows in train exceed 60 tokens"):
        assert chat({"workload.length": 60}).parts


def test_the_untouched_base_and_its_examples_are_answered_by_the_base(chat):
    task = chat()
    model = drawn(task)
    part = task.parts["test"]
    loader = Loader(task, "test")
    beside = task.beside(model, loader)
    base = AutoModelForCausalLM.from_pretrained(task.settings.base).eval()
    assert [*beside["untouched base"]] == task.write(base, task.labelled(part.samples), 1)
    assert [*beside["untouched base"]] != task.write(model, task.labelled(part.samples), 1)
    assert {*beside} == {"untouched base", "base, 2 examples"}
    few = task.beside(model, Loader(task, "test", most=2))
    assert {name: [*answers] for name, answers in few.items()} == {
        name: [*v[:2]] for name, v in beside.items()
    }
    assert {*task.baselines()} == {"nearest, values replaced"}
    full = chat({"workload.method": "full"})
    trained = full.model()
    torch.nn.init.normal_(trained.model.embed_tokens.weight)
    assert [*full.beside(trained, loader)["untouched base"]] == [*beside["untouched base"]]


def test_a_fully_trained_model_is_tested_without_a_base_that_is_not_mounted_any_more(
    chat, tmp_path, capsys
):
    base = write_base(tmp_path / "base")
    task = chat({"workload.method": "full", "workload.base": str(base)})
    model = task.model()
    loader = Loader(task, "test")
    shutil.rmtree(base)
    assert task.beside(model, loader) == {}
    assert "The test goes without the untouched base" in capsys.readouterr().out


def test_a_resumed_full_training_without_its_base_has_no_row_of_an_untouched_base(config):
    changes = ("workload.method=full", f"workload.base={config.parent / 'base'}")
    train(config, "cut", *changes, "session.minutes=1e-6", "session.margin_seconds=6e6", code=75)
    shutil.rmtree(config.parent / "base")
    run = train(config, "cut", *changes)
    methods = [row["method"] for row in csv.DictReader((run / "evaluation.csv").open())]
    assert methods[-1] == "network"
    assert "untouched base" not in methods


class Loader:
    """A part in one batch, as an evaluation has it; or its first samples, as a check has them."""

    def __init__(self, task, name, most=None):
        self.dataset = task.parts[name]
        self.task = task
        self.most = most

    def __iter__(self):
        yield self.task.labelled(
            [self.dataset[k].sample for k in range(self.most or len(self.dataset))]
        )


def test_perplexity_of_other_text_is_that_of_the_model(chat, tmp_path):
    (tmp_path / "other.txt").write_text("skipped half" + "a measured half")
    task = chat({"workload.other.text": str(tmp_path / "other.txt")})
    model = drawn(task)
    ids = torch.tensor([task.template.tokens("a measured half"[-14:])])
    scores = task.evaluate(model, Loader(task, "validation"))
    expected = float(model(input_ids=ids, labels=ids).loss.exp())
    assert scores["other_perplexity"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("nf4", [False, True])
def test_merged_weights_read_again_answer_as_base_and_adapter(nf4, chat, tmp_path):
    task = chat({"workload.nf4": nf4})
    model = drawn(task)
    task.export(model, tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    ids = torch.tensor([task.template.encode(calls(1)[0]).ids])
    ours = model(input_ids=ids).logits
    theirs = merged(input_ids=ids).logits
    assert float((ours - theirs).abs().max()) < 1e-3 * float(ours.abs().max())
    assert {path.name for path in (tmp_path / "merged").iterdir()} >= {
        "config.json",
        "tokenizer.json",
    }
    assert merged.generation_config.eos_token_id == task.template.stops
    peft = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert peft["r"] == 2
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


ANSWER = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
talk = [{"role": "user", "content": question}]
prompt = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
written = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1]:]
print(json.dumps(tokenizer.decode(written)))
"""


def test_transformers_alone_opens_merged_weights_in_a_fresh_process_and_answers_the_same(
    chat, tmp_path
):
    task = chat()
    model = drawn(task)
    task.export(model, tmp_path)
    question = "weather for Dalga"
    process = subprocess.run(
        [sys.executable, "-c", ANSWER, tmp_path / "merged", question],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    (answer,) = task.write(model, task.labelled([Row((("user", question),), "x")]), 1)
    assert answer
    assert (
        task.template.decode(task.template.tokenizer.encode(json.loads(process.stdout))) == answer
    )


def test_a_doctor_loads_a_base_once_cuts_texts_and_sees_what_a_checkpoint_leaves_out(
    config, monkeypatch, capfd
):
    loaded = []
    load = published._loaded
    monkeypatch.setattr(
        published, "_loaded", lambda *args, **keys: loaded.append(1) or load(*args, **keys)
    )
    monkeypatch.setattr(checks, "_SLOW", 0.0)
    monkeypatch.setattr(rehearsal, "amount", lambda size: f"{size} bytes")
    lengths = set()
    generate = LlamaForCausalLM.generate

    def generated(model, **options):
        lengths.add(options["max_new_tokens"])
        return generate(model, **options)

    monkeypatch.setattr(LlamaForCausalLM, "generate", generated)
    long = load_config(
        config, {"workload.answer": 30, "workload.base": str(config.parent / "base")}
    )
    findings = {finding.name: finding for finding in rehearsal.check_run(long)}
    assert not [finding for finding in findings.values() if finding.verdict == "bad"]
    assert len(loaded) == 1
    assert lengths == {8}
    base = (config.parent / "base" / "model.safetensors").stat().st_size
    each = int(findings["checkpoints"].value.split(" bytes each")[0])
    assert 0 < each < 0.7 * base, "the base is in no checkpoint"
    printed = capfd.readouterr()
    assert "Loading weights" not in printed.out + printed.err
    assert "FutureWarning" not in printed.out + printed.err


def test_merged_weights_that_answer_otherwise_are_refused(chat, tmp_path):
    task = chat()
    task.export(drawn(task), tmp_path / "run")
    with pytest.raises(
        BadInput, match="The merged model is not the trained one: logits differ by at most"
    ):
        prove(
            drawn(task, seed=1),
            tmp_path / "run" / "merged",
            [task.template.encode(calls(1)[0]).ids],
        )


def test_merged_weights_in_several_files_are_those_of_one(chat, tmp_path, monkeypatch):
    model = drawn(chat())
    for name, size in (("one", 2**31), ("many", 2_000)):
        monkeypatch.setattr("workloads.chat._PIECE", size)
        write_merged(model, tmp_path / name, [1])
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("one", "many")
    )
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors*")] == [
        "model.safetensors"
    ]
    assert len([*(tmp_path / "many").glob("*.safetensors")]) > 3
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture
def config(tmp_path, base, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "my.yaml").write_text(CONFIG.replace("workload:\n", "workload:\n  base: base\n"))
    return tmp_path / "my.yaml"


def train(config, name, *options, code=0):
    sets = [part for option in (f"run.name={name}", *options) for part in ("--set", option)]
    assert command(["train", str(config), *sets]) == code
    return config.parent / "runs" / name


def hashes(run):
    files = sorted([*(run / "export").rglob("*.safetensors"), *run.glob("*.csv")])
    names = {path.relative_to(run).as_posix(): path for path in files if path.name != "metrics.csv"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()}


def test_a_stopped_run_resumes_to_the_same_adapter(config):
    whole = train(config, "whole")
    first = train(config, "cut", "session.minutes=1e-6", "session.margin_seconds=6e6", code=75)
    assert json.loads((first / "summary.json").read_text())["reason"] == "deadline"
    assert len(hashes(whole)) >= 4
    (best,) = (whole / "best").glob("step-*/model.safetensors")
    assert all("lora_" in name for name in load_file(best)), "the base is in no checkpoint"
    assert hashes(train(config, "cut")) == hashes(whole)


@pytest.mark.parametrize(
    "changes", [("workload.method=full",), ("checkpoint.frozen=save",)], ids=["full", "adapters"]
)
def test_a_stopped_run_resumes_without_its_base_where_its_checkpoints_have_all_weights(
    config, changes
):
    (config.parent / "base" / "other.txt").write_text("some words of another kind. " * 200)
    other = ("workload.other.text=other.txt", "workload.other.replay=0.5")
    changes = (*changes, *other, f"workload.base={config.parent / 'base'}")
    whole = train(config, "whole", *changes)
    train(config, "cut", *changes, "session.minutes=1e-6", "session.margin_seconds=6e6", code=75)
    shutil.rmtree(config.parent / "base")
    resumed = train(config, "cut", *changes)
    steps = [
        [*(run / "checkpoints").glob("step-00000006/model.safetensors")] for run in (whole, resumed)
    ]
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for (path,) in steps}) == 1


def test_a_run_is_tested_beside_others_and_its_archive_answers_new_questions(config, capsys):
    run = train(config, "my", "checkpoint.frozen=save")
    out = capsys.readouterr().out
    methods = [row["method"] for row in csv.DictReader((run / "evaluation.csv").open())]
    assert methods == [
        "commonest answer", "nearest, values replaced", "untouched base", "base, 2 examples", "network",
    ]  # fmt: skip
    assert "In brackets: 95 %" in out
    assert "Merged in fp16 and read again" in out
    assert "Cut after 8 tokens, of 6 answers: " in out
    shutil.rmtree(config.parent / "base")  # the archive has base and tokenizer
    questions = config.parent / "questions.jsonl"
    write_rows(
        questions,
        [{"prompt": "weather for Dalga"}, {"messages": [{"role": "user", "content": "hey"}]}],
    )
    ensemble.run(config.parent / "runs" / "outputs.tar.gz", questions, config.parent / "answers")
    rows = [*csv.DictReader((config.parent / "answers" / "predictions.csv").open())]
    task, (model,) = ensemble.load(config.parent / "runs" / "outputs.tar.gz")
    expected = task.answers([model], [Row((("user", "weather for Dalga"),), "")])[0]
    assert len(rows) == 2
    assert rows[0]["prediction"] == expected["prediction"]


def test_a_plan_needs_the_bases_config_alone(config, capsys):
    for path in (config.parent / "base").iterdir():
        if path.name != "config.json":
            path.unlink()
    assert command(["plan", str(config), "--gpu", "t4"]) == 0
    assert "micro-batch" in capsys.readouterr().out


def test_another_tokenizer_of_the_base_changes_nothing_for_a_begun_run(chat, tmp_path, base):
    first = chat()
    values = first.learned()
    other = write_base(tmp_path / "other")
    (other / "tokenizer.json").write_text("{}")
    task = chat({"workload.base": str(other)})
    task.take_learned(values)
    row = calls(1)[0]
    assert task.template.encode(row) == first.template.encode(row)


def test_a_damaged_tokenizer_in_the_cache_is_written_anew(chat, tmp_path):
    first = chat()
    first.learned()
    (path,) = (tmp_path / "cache").rglob("tokenizer-*.json")
    whole = path.read_text()
    row = calls(1)[0]
    for text in (whole.replace('"a"', '"Q"'), whole[:500], ""):
        path.write_text(text)
        assert chat().template.encode(row) == first.template.encode(row)
        assert path.read_text() == whole


def test_a_run_whose_tokenizer_is_damaged_stops_where_the_bases_is_another(config, capsys):
    train(config, "my", "session.minutes=1e-6", "session.margin_seconds=6e6", code=75)
    (kept,) = (config.parent / "runs" / "my" / "data").glob("tokenizer*.json")
    whole = kept.read_text()
    base = config.parent / "base" / "tokenizer.json"
    kept.write_text(whole[:-9])
    other = json.loads(base.read_text())
    words = other["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    before = base.read_text()
    base.write_text(json.dumps(other))
    train(config, "my", code=2)
    assert "tokenizer.json of this run is damaged or gone" in capsys.readouterr().err
    base.write_text(before)
    train(config, "my")
    assert kept.read_text() == whole, "the base's is the same"


def test_a_base_whose_configuration_is_damaged_is_named(config, capsys):
    for name, text in (("generation_config.json", "{"), ("config.json", '{"model_type": "llama"}')):
        path = config.parent / "base" / name
        before = path.read_text()
        path.write_text(text)
        train(config, "my", code=2)
        assert name in capsys.readouterr().err
        path.write_text(before)


@pytest.mark.parametrize(
    ("kind", "sentence"), [("short", "lacks 1 weights"), ("index", "lacks 'metadata'")]
)
def test_a_base_without_some_weights_is_refused(chat, base, tmp_path, kind, sentence):
    shutil.copytree(base, tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    tensors = load_file(path)
    if kind == "short":
        tensors.pop("model.layers.0.mlp.gate_proj.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    if kind == "index":
        path.rename(path.with_name("model-1.safetensors"))
        index = {"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}
        path.with_name("model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=sentence):
        chat({"workload.base": str(tmp_path / "other")}).model()


SMALL = (ROOT / "configs" / "chat-base" / "chat_template.jinja").read_text("utf-8")
CALL = {"name": "weather", "arguments": {"city": "Oslo"}}


def talks(count):
    """Talks with a call and its answer, and plain ones, two of each three and one."""
    for number in range(count):
        ask = {"role": "user", "content": f"weather in Oslo {number}?"}
        call = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": CALL}],
        }
        answer = {"role": "assistant", "content": f"It is {number}."}
        plain = [ask, answer]
        yield {
            "messages": plain
            if number % 3 == 0
            else [ask, call, {"role": "tool", "content": "12"}, answer]
        }


@pytest.fixture
def calling(config):
    """A configuration whose base knows calls, with talks that make some."""
    (config.parent / "base" / "chat_template.jinja").write_text(SMALL)
    write_rows(config.parent / "talks" / "train.jsonl", talks(30))
    write_rows(
        config.parent / "talks" / "test.jsonl",
        ({**talk, "id": 1} for talk in reversed([*talks(39)][30:])),
    )
    config.write_text(
        config.read_text()
        .replace("data: {", "data: {dir: talks, ")
        .replace("length: 200", "length: 500")
    )
    return config


def test_every_trained_answer_is_scored_and_calls_as_calls(calling, capsys):
    run = train(calling, "my", "workload.test_rows=6")
    out = capsys.readouterr().out
    assert "Scored: 10 answers of 6 conversations." in out
    assert "4 of them have calls. Right by name and" in out
    (network,) = [
        row for row in csv.DictReader((run / "evaluation.csv").open()) if row["method"] == "network"
    ]
    assert 0 <= float(network["call"]) <= 1
    answers = [*csv.DictReader((run / "answers.csv").open())]
    assert len(answers) == 10
    assert len({row["question"] for row in answers}) == 6
    assert sum(row["target"].startswith("<tool_call>") for row in answers) == 4


def test_the_description_counts_calls_answers_and_what_was_not_read(calling):
    task = load_task(load_config(calling))
    about = task.describe_data()
    assert "24 conversations have calls, 0 have tools." in about
    assert "Keys that are not read: id (9 rows)." in about
    assert "10 answers of 6 conversations are scored in test." in about


def test_the_loss_of_a_test_counts_each_trained_token_once(calling):
    task = load_task(load_config(calling, {"workload.test_rows": 9}))
    (path,) = [calling.parent / "talks" / "test.jsonl"]
    whole = [task.template.encode(row) for row in rows.read_files(path)[path]]
    samples = task.parts["test"].samples
    assert len(samples) == 15
    assert task.count(task.labelled(samples)) == {"loss": sum(sum(each.trained) for each in whole)}
    assert {task.group(sample) for sample in samples} == {
        rows.question(row) for row in rows.read_files(path)[path]
    }


def test_examples_in_a_prompt_have_their_calls(calling):
    task = load_task(load_config(calling))
    near = task._neighbours()
    sample = task.parts["test"].samples[0]
    prompted = near.prompted(sample, 8, lambda row: True)
    assert any(row.has_calls for row in near.nearest(sample, 8))
    assert "<tool_call>" in task.template.render(prompted.turns)


def test_a_base_that_knows_no_calls_refuses_rows_with_some_by_name_also_new_ones(
    calling, base, tmp_path
):
    shutil.copy(base / "chat_template.jinja", calling.parent / "base" / "chat_template.jinja")
    task = load_task(load_config(calling))
    with pytest.raises(
        BadInput, match="26 rows have calls: the chat template of the base does not show tool calls"
    ):
        assert task.parts
    write_rows(tmp_path / "new.jsonl", [[*talks(2)][1]])
    with pytest.raises(BadInput, match="new.jsonl:1: Conversations have calls"):
        task.read_new(tmp_path / "new.jsonl")


def test_a_resumed_run_whose_frozen_base_is_gone_says_that_it_is_not_there(config, capsys):
    base = f"workload.base={config.parent / 'base'}"
    train(config, "my", base, "session.minutes=1e-6", "session.margin_seconds=6e6", code=75)
    shutil.rmtree(config.parent / "base")
    train(config, "my", base, code=2)
    assert "are not there, of which the checkpoints omit" in capsys.readouterr().err


def test_a_mark_that_the_base_cannot_tell_from_other_tokens_is_named(chat, tmp_path, capsys):
    folder = write_base(tmp_path / "twins")
    model = LlamaForCausalLM.from_pretrained(folder)
    stop = tokenizer_of().eos_token_id
    with torch.no_grad():
        model.get_output_embeddings().weight[100:112] = model.get_output_embeddings().weight[stop]
    model.save_pretrained(folder)
    task = chat({"workload.base": str(folder)})
    assert task.parts["train"].samples
    task.model()
    task.model()
    said = capsys.readouterr().out
    assert said.count("The base cannot tell <|im_end|> from 12 other tokens") == 1
    full = chat({"workload.base": str(folder), "workload.method": "full"})
    assert full.parts["train"].samples
    full.model()
    known = chat()
    assert known.parts["train"].samples
    known.model()
    assert "cannot tell" not in capsys.readouterr().out
