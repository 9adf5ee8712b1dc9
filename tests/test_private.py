"""Private names of torch and scikit-learn: each is there and does what is said, and no other file uses one."""

import ast

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import nn

from docs.house import FILES, tree_of
from lib import private
from tests.conftest import ROOT

# Of the named tuples, of our own classes, of Python, of rasterio and of transformers, which have no public names for it
OTHERS = {
    "_replace", "_asdict", "_fields", "_exit", "_getframe", "_err", "_from_config", "_attn_implementation",
    "_can_checkpoint_with_cache", "_orig_mod",
}  # fmt: skip


HOUSES = ("lib", "workloads", "trainbook")


def own_names():
    """Returns the private names that files of the houses define."""
    names = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return names


def private_names(tree):
    """Yields the private attributes and imports of a file, and those that getattr or hasattr names."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name, node
            case ast.ImportFrom(module=module) if not (module or "").startswith(HOUSES):
                names = [*(module or "").split("."), *(alias.name for alias in node.names)]
                for name in names:
                    yield name, node
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]
            ):
                yield name, node


def test_no_other_file_uses_a_private_name_of_a_library():
    known = own_names() | OTHERS
    for path in FILES:
        if path == ROOT / "lib" / "private.py":
            continue
        for name, node in private_names(tree_of(path)):
            is_private = name.startswith("_") and not name.startswith("__") and name != "_"
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            assert not is_private or name in known, f"{place}: {ast.unparse(node)}"


def test_norms_are_layers_with_statistics():
    assert isinstance(nn.BatchNorm2d(1), private.NORMS)
    assert isinstance(nn.InstanceNorm1d(1), private.NORMS)
    assert not isinstance(nn.LayerNorm(1), private.NORMS)


def test_operations_on_lists_are_those_on_each():
    ones = [torch.ones(2), torch.ones(3)]
    norms = torch.stack(private.norms_of(ones))
    assert norms.tolist() == pytest.approx([2**0.5, 3**0.5])
    private.copy_into(ones, [torch.zeros(2), torch.full((3,), 2.0)])
    private.move_towards(ones, [torch.ones(2), torch.ones(3)], 0.5)
    assert [value.tolist() for value in ones] == [[0.5, 0.5], [1.5, 1.5, 1.5]]
    (bucket,) = private.buckets(ones, 100)
    flat = private.flattened(bucket)
    assert [value.tolist() for value in private.unflattened(flat, bucket)] == [[0.5] * 2, [1.5] * 3]


def test_a_version_counts_changes_in_place_and_an_address_is_a_storages():
    value = torch.zeros(2)
    before = private.version(value)
    value.add_(1)
    assert private.version(value) == before + 1
    assert private.address(value.untyped_storage()) == private.address(value[1:].untyped_storage())


def test_a_mode_sees_operators_by_schema_and_backward_passes_by_their_nodes():
    seen = []

    class Watching(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            with private.without_overrides():
                node = private.running_node()
                number = node and private.number_of(node)()
                seen.append((private.schema(func).name, private.backward_pass(), number))
                return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with Watching():
        y = (x * 2).sum()
        newest = private.newest_node()
        y.backward()
    assert seen[0][:2] == ("aten::mul", -1)
    assert seen[0][2] is None
    numbers = [number for _, turn, number in seen if turn >= 0 and number is not None]
    assert any(number < newest for number in numbers)
    assert private.overloads(torch.ops.aten.mul.Tensor) is torch.ops.aten.mul


def test_kernels_of_attention_and_softmax_are_there():
    q = torch.empty(1, 2, 8, 16, device="meta")
    assert private.attend_flash(q, q, q, 0.0, False, False)[0].shape == q.shape
    assert private.attend_efficient(q, q, q, None, False)[0].shape == q.shape
    assert private.safe_softmax(torch.zeros(2), 0).tolist() == [0.5, 0.5]
    assert [int(n) for n in private.attention_order()]
    half = private.softmax_to_half["softmax"](torch.zeros(2), 0, False)
    assert half.tolist() == [0.5, 0.5]
    assert private.memory_format(torch.zeros(1, 2, 3, 4)) is torch.contiguous_format
    scores = torch.zeros(1, 2)
    assert private.nll_loss(scores, torch.tensor([1]), None, 1, -100).item() == 0
    assert private.current_function_mode() is None


def test_a_scaler_unscales_again_once_it_forgets():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    private.forget_unscaling(scaler, optimizer)
    scaler.unscale_(optimizer)


def test_a_loader_names_its_workers():
    loader = torch.utils.data.DataLoader(range(2), num_workers=1)
    batches = iter(loader)
    assert len(private.processes_of(batches)) == 1
    assert private.processes_of(iter([])) == ()
    del batches


def test_boosting_is_the_sum_of_its_trees():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 2))
    model = HistGradientBoostingClassifier(max_iter=3, random_state=0).fit(x, x[:, 0] > 0)
    scores = np.full(60, private.boosting_begins_with(model)[0])
    for ((tree,),) in zip(private.boosted_trees(model), strict=True):
        nodes = private.tree_nodes((len(tree.nodes),))
        nodes[:] = tree.nodes
        empty = np.zeros((0, 8), np.uint32)
        scores += private.tree_of(nodes, empty).predict(x, empty, np.zeros(0, np.uint32), 1)
    assert scores == pytest.approx(model.decision_function(x))
    assert private.boosting_begins_with(object()) is None
    assert private.boosted_trees(object()) == []


def test_a_group_waits_as_long_as_it_is_told(tmp_path):
    file = tmp_path / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    try:
        private.set_timeout(torch.distributed.group.WORLD, 7.0)
    finally:
        torch.distributed.destroy_process_group()
