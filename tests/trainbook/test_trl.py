"""`Finish` beside TRL's SFTTrainer: stopped and resumed, it ends in the same weights."""

import pytest
import torch

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Whitespace  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402

from trainbook.hf import Finish  # noqa: E402

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"]
STEPS = 6


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[EOS]", "[PAD]", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", eos_token="[EOS]", pad_token="[PAD]"
    )


def train(folder, stops_at=None):
    torch.manual_seed(0)
    finish = Finish()
    steps = iter(range(1, 100))
    finish.must_stop = lambda: next(steps) == stops_at
    config = GPT2Config(
        vocab_size=len(WORDS) + 3, n_embd=8, n_layer=1, n_head=1, n_positions=16, eos_token_id=1
    )
    model = GPT2LMHeadModel(config)
    options = trl.SFTConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    rows = [[number, 3, number % 7 + 3, 1] for number in range(3, 13)]
    table = datasets.table.InMemoryTable(pyarrow.table({"input_ids": rows}))
    data = datasets.Dataset(table, fingerprint="rows")  # computing one pickles all of pyarrow
    trainer = trl.SFTTrainer(
        model=model,
        args=options,
        train_dataset=data,
        processing_class=tokenizer(),
        callbacks=[finish],
    )
    trainer.train(resume_from_checkpoint=finish.newest(folder))
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_trainer_of_trl_that_is_stopped_and_resumed_ends_in_the_same_weights(tmp_path):
    whole = train(tmp_path / "whole")
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "stopped", stops_at=3)
    assert stop.value.code == 75
    again = train(tmp_path / "stopped")
    assert all(torch.equal(again[name], value) for name, value in whole.items())
