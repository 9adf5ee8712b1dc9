"""A tiny BERT of transformers whose published weights come from a folder, on the toy's samples."""

from dataclasses import dataclass

import torch
from transformers import AutoModelForSequenceClassification

from lib.config.reader import option
from lib.task.quantised import quantise
from tests import toy


@dataclass(frozen=True)
class Settings(toy.Settings):
    published: str = option("", "Published weights.")
    frozen: bool = option(False, "Whether all but the head is frozen.")


class Bert(toy.Toy):
    Settings = Settings

    def model(self):
        model = self.pretrained(
            self.config.workload.published, AutoModelForSequenceClassification, num_labels=1
        )
        if self.config.workload.frozen:
            model.bert.requires_grad_(False)
        return model

    def loss(self, model, batch):
        ids = (batch["id"][:, None].long() + torch.arange(3, device=batch["id"].device)) % 11
        answers = model(input_ids=ids).logits
        valid = batch["y"] > -1e8
        return {"squared": torch.where(valid, (answers - batch["y"]) ** 2, 0.0).sum()}, {}

    def export(self, model, folder):
        model.save_pretrained(folder)


class Loaded(Bert):
    def model(self):
        return AutoModelForSequenceClassification.from_pretrained(
            self.config.workload.published, num_labels=1
        )


class Nf4(Bert):
    def model(self):
        from transformers import BitsAndBytesConfig

        kind = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        )
        options = {"quantization_config": kind, "device_map": {"": 0}, "low_cpu_mem_usage": True}
        name = self.config.workload.published
        model = self.pretrained(name, AutoModelForSequenceClassification, num_labels=1, **options)
        model.bert.requires_grad_(False)
        return model


class Packed(Bert):
    def model(self):
        model = self.pretrained(
            self.config.workload.published, AutoModelForSequenceClassification, num_labels=1
        )
        quantise(model.bert)
        return model
