"""Boxes around heads of wheat: `my_task.py` finds cells with a centre; boxes have the mean size."""

import json
from collections import defaultdict

import numpy as np
import torch
from my_task import Segmentation
from PIL import Image

from trainbook import picture, records, split

SIDE = 48
CELL = 4  # pixels of a picture, and of a cell


class Wheat(Segmentation):
    sentinels = ("train.csv",)
    metrics = ("mean_iou",)

    def read(self, source):
        boxes = defaultdict(list)
        for row in records(source / "train.csv"):
            boxes[row["image_id"]].append(json.loads(row["bbox"]))
        paths = sorted((source / "train").glob("*.png"))
        return split((path, boxes[path.stem]) for path in paths)

    def read_new(self, source):
        return [(path, []) for path in sorted(source.glob("*.png"))]

    def learn(self, samples):
        sizes = [box[2:] for _, boxes in samples for box in boxes]
        return {"size": np.mean(sizes or [[1, 1]], 0).tolist()}

    def example(self):
        return Image.new("RGB", (SIDE, SIDE)), []

    def batch(self, samples, training):
        images = np.stack([picture(image, SIDE) for image, _ in samples])
        labels = torch.zeros(len(samples), SIDE // CELL, SIDE // CELL, dtype=torch.long)
        for cells, (_, boxes) in zip(labels, samples, strict=True):
            for x, y, width, height in boxes:
                row = int(y + height / 2) // CELL
                column = int(x + width / 2) // CELL
                cells[row, column] = 1
        x = torch.from_numpy(images).permute(0, 3, 1, 2)
        return {"x": x / 255, "labels": labels}

    def outputs(self, model, batch):
        return torch.nn.functional.max_pool2d(model(batch["x"]), CELL)

    def answers(self, models, samples):
        width, height = self.learned()["size"]
        answers = []
        for row in super().answers(models, samples):
            boxes = []
            for centre in np.argwhere(row["prediction"]):
                y, x = centre * CELL + CELL / 2
                left = x - width / 2
                top = y - height / 2
                boxes.append(f"1.0 {left:g} {top:g} {width:g} {height:g}")
            answers.append({"PredictionString": " ".join(boxes)})
        return answers
