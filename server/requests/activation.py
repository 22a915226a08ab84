"""Turns raw scores, which engines give, into scores for clients.

Shapes: N rows of L scores, float32.
"""

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from server.requests.time_slices import steps


async def bounded(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores [N, L] from 0 to 1: sigmoid of one score, since a softmax of it is always 1, and softmax of several."""
    return await activated(raw, Activation.SIGMOID if raw.shape[1] == 1 else Activation.SOFTMAX)


async def activated(raw: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Scores [N, L] of raw ones. Long work is done in slices."""
    if activation is Activation.IDENTITY:
        return raw
    scores = np.empty_like(raw)
    async for part in steps(*raw.shape):
        scores[part] = _sigmoid(raw[part]) if activation is Activation.SIGMOID else _softmax(raw[part])
    return scores


def _softmax(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))  # the largest is 1, so none overflows
    shares: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(-np.abs(raw))  # at most 1, so none overflows
    scores: NDArray[np.float32] = np.where(raw >= 0, np.float32(1), powers) / (1 + powers)
    return scores
