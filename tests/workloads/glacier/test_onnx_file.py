"""The ONNX file answers as the network does; what it needs and lacks is said before the training."""

import importlib.util

import pytest
import torch

from lib.errors import BadInput
from lib.launch import export, prepare
from lib.task import load_task
from workloads.glacier import onnx_file

INDICES = {"workload.export": "onnx", "workload.indices": [["red", "nir"]], "workload.prior": True}


def test_the_file_answers_as_the_network_for_any_number_of_tiles(tiny, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    torch.manual_seed(0)
    task = load_task(tiny(INDICES))
    model = task.model().eval()
    model.mean.fill_(100)
    model.deviation.fill_(10)
    model.prior[1] = 2.0
    task.export(model, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.*")) >= ["README.txt", "model.onnx"]
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    image = 100 + 10 * torch.randn(1, 2, 32, 32)
    image[0, :, 4:9] = float("nan")
    (found,) = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"image": image.numpy()})
    with torch.inference_mode():
        assert torch.allclose(torch.from_numpy(found), model(image), atol=1e-4)
    assert "the bands red, nir" in (tmp_path / "README.txt").read_text()


def test_missing_packages_are_named_before_the_training_and_when_the_file_is_written(tiny, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "onnx" else find(name, *more))
    task = load_task(tiny(INDICES))
    sentence = "workload.export is onnx, and onnx.* cannot be found: pip install onnx"
    with pytest.raises(BadInput, match=sentence):
        task.export(task.model(), tmp_path)
    assert "cannot be found" in task.describe_data() and "cannot be found" not in load_task(tiny()).describe_data()
    assert onnx_file.missing().endswith("without training.")


def test_a_run_exports_where_its_settings_say_so_alone(tiny):
    assert export.is_lacking(prepare(tiny(INDICES))) and not export.is_lacking(prepare(tiny()))
