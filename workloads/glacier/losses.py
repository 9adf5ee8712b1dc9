"""Losses of a segmentation with ignored pixels: focal, Dice, soft MCC and distance to boundaries.

They are sums over tiles, so neither micro-batch nor number of cards changes them. `count` returns their divisors: valid
pixels for focal, tiles with valid pixels for Dice, tiles with at least two classes for MCC and boundary, which are
undefined on others. Arithmetic is in fp32 or more, also under autocast.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainbook import IGNORED
from workloads.glacier.settings import Loss


def weights(loss: Loss, step: int) -> dict[str, float]:
    """Returns the weight of each term in a step; the boundary's rises linearly (Kervadec et al. 2021, section 3.3)."""
    weights = {term: getattr(loss, term) for term in loss.terms}
    if loss.ramp_steps and "boundary" in weights:
        weights["boundary"] *= min(1.0, step / loss.ramp_steps)
    return weights


def count(loss: Loss, labels: Tensor) -> dict[str, float]:
    """Returns the divisor of each term of `sums`; labels (B, H, W)."""
    valid = labels != IGNORED
    highest = labels.flatten(1).amax(1)  # (B); IGNORED is below all classes
    lowest = labels.where(valid, highest[:, None, None]).flatten(1).amin(1)
    tiles = int(valid.flatten(1).any(1).sum())
    several = int((highest > lowest).sum())
    pixels: float = int(valid.sum())
    if loss.class_weights:
        weights = torch.tensor(loss.class_weights, dtype=torch.float64)
        of_class = torch.bincount(labels[valid].long(), minlength=len(weights))
        pixels = float(of_class.double().cpu() @ weights)
    numbers = {"focal": pixels, "dice": tiles, "mcc": several, "boundary": several}
    return {term: numbers[term] for term in loss.terms}


def sums(
    loss: Loss, logits: Tensor, labels: Tensor, distances: Tensor | None = None
) -> dict[str, Tensor]:
    """Sums each term over the tiles, without its weight.

    logits (B, K, H, W); labels (B, H, W) integers; distances (B, K, H, W) from `distance_maps`, for the boundary term.
    A tile without valid pixels adds 0, and 0 to the gradient.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_p = logits.log_softmax(1)
        classes = torch.arange(logits.shape[1], device=labels.device)
        truth = labels[:, None] == classes[:, None, None]  # all False: ignored
        is_ignored = (labels == IGNORED)[:, None]
        p = log_p.exp().masked_fill(is_ignored, 0.0)
        total: dict[str, Tensor] = {}
        if loss.focal:
            total["focal"] = _focal(log_p, truth, loss.class_weights).sum()
        if loss.dice or loss.mcc:
            overlap = p.masked_fill(~truth, 0.0).sum((2, 3))  # (B, K)
            predicted = p.sum((2, 3))
            true = truth.sum((2, 3)).to(p.dtype)
        if loss.dice:
            total["dice"] = _dice(overlap, predicted, true).sum()
        if loss.mcc:
            total["mcc"] = _mcc(overlap, predicted, true).sum()
        if loss.boundary:
            total["boundary"] = _boundary(p, truth, distances).sum()  # type: ignore[arg-type]
        return total


def _focal(log_p: Tensor, truth: Tensor, class_weights: Sequence[float]) -> Tensor:
    """FL = -(1 - p_t)^2 log p_t of each pixel (Lin et al., ICCV 2017, equation 4), times its class's weight.

    0 for ignored pixels. (B, K, H, W) -> (B, H, W).
    """
    log_pt = log_p.masked_fill(~truth, 0.0).sum(1)
    rest = (-torch.expm1(log_pt)).clamp_min(1e-6)
    focal = -(rest**2.0) * log_pt
    if class_weights:
        weights = focal.new_tensor(class_weights).view(-1, 1, 1)
        return focal * (truth * weights).sum(1)
    return focal


def _dice(overlap: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """1 - 2 sum(p g) / (sum(p) + sum(g)) of each tile, as the mean over the classes that it has (Milletari et al., 3DV
    2016, with plain sums below as in Sudre et al., DLMIA 2017).

    Predicting an absent class lowers the scores of the others. All arguments are (B, K); returns (B).
    """
    present = true > 0
    scores = 2 * overlap / (predicted + true).clamp_min(1.0)
    # A present class has at least one pixel, so the bound of 1 does not affect it
    return torch.where(present, 1 - scores, 0.0).sum(1) / present.sum(1).clamp_min(1)


def _mcc(overlap: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """1 - R_K of each tile, with expected counts in place of counts (R_K: Gorodkin, Comp. Biol. Chem. 2004).

        R_K = (c - sum_k t_k q_k) / sqrt((1 - sum_k t_k^2) (1 - sum_k q_k^2))

    where c, t and q are the shares of right pixels, and of true and predicted pixels of class k: squares of pixel
    counts lose digits in fp32. 0 for tiles of one class. All arguments are (B, K); returns (B).
    """
    pixels = true.sum(1, keepdim=True).clamp_min(1.0)
    overlap = overlap / pixels
    predicted = predicted / pixels
    true = true / pixels
    covariance = overlap.sum(1) - (true * predicted).sum(1)
    spread = (1 - (true**2).sum(1)) * (1 - (predicted**2).sum(1))
    # 1e-8: if all pixels are predicted as one class, the spread is 0, where the root has no slope
    correlation = covariance / (spread.clamp_min(0.0) + 1e-8).sqrt()
    is_mixed = (true > 0).sum(1) > 1
    return torch.where(is_mixed, 1 - correlation, 0.0)


def _boundary(p: Tensor, truth: Tensor, distances: Tensor) -> Tensor:
    """(B): the mean over valid pixels and present classes of phi_k p_k (Kervadec et al. 2019, equation 5)."""
    present = truth.flatten(2).any(2)  # (B, K)
    pixels = truth.flatten(1).sum(1).clamp_min(1)
    total = (p * distances.to(p.dtype)).sum((2, 3))
    of_present = torch.where(present, total, 0.0).sum(1)
    mean = of_present / (pixels * present.sum(1).clamp_min(1))
    return torch.where(present.sum(1) > 1, mean, 0.0)


def distance_maps(mask: np.ndarray, classes: int) -> np.ndarray:
    """(H, W) integers -> (classes, H, W) float16: the signed distance of each pixel to the rim of each class.

    Negative inside; in units of the longer side of the tile. The pixels on the inner side of a rim are at 0 and those
    on the outer side at 1 pixel, as in the code of Kervadec et al. Zeros for an absent class, and in a tile of one
    class. Ignored pixels make no rim: the distance goes to the next valid pixel of another class.
    """
    from scipy.ndimage import distance_transform_edt

    maps = np.zeros((classes, *mask.shape), np.float16)
    present = [k for k in range(classes) if (mask == k).any()]
    if len(present) < 2:
        return maps
    # class -> (H, W) distance of each pixel to the nearest one of it
    away = {k: distance_transform_edt(mask != k) for k in present}
    for k in present:
        # The nearest pixel of another class is the nearest of any of them: one transform a class is enough
        others = [away[other] for other in present if other != k]
        inside = 1 - np.minimum.reduce(others)
        maps[k] = np.where(mask == k, inside, away[k]) / max(mask.shape)
    return maps
