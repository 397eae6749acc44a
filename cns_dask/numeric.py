"""Numeric helpers that several layers share; on NumPy arrays, without Dask or files.

Compiled kernels run without fast-math, in one fixed order of operations: a row's result depends on the row alone, never
on its position in a block, so chunking cannot change a bit of it. They hold no lock (`nogil`) and start no threads of
their own: one block per Dask thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Values closer than this count as tied: the order of additions must not decide.
TIE = 1e-9

compiled = numba.njit(nogil=True, cache=True)
_buffers = threading.local()


def workspace(name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array with any content that this thread uses again and again.

    Workers give freed memory back at once, and to get it again page by page took as long as the work in it (measured).
    """
    needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = getattr(_buffers, name, None)
    if buffer is None or buffer.nbytes < needed:
        buffer = np.empty(needed, np.uint8)
        setattr(_buffers, name, buffer)
    return np.asarray(buffer[:needed].view(dtype).reshape(shape))


@compiled
def project_block(rows: NDArray[Any], components: NDArray[Any], out: NDArray[Any]) -> None:
    """Add `rows @ components` to `out`, feature by feature.

    A BLAS product rounds differently with the shape of the block and would tear duplicate rows apart.
    """
    n_features, n_components = components.shape
    for i in range(rows.shape[0]):
        for f in range(n_features):
            for c in range(n_components):
                out[i, c] += rows[i, f] * components[f, c]


@compiled
def mean_of_rows(values: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
    """Mean of the rows of `values` (n, c) that each row of `indices` (m, k) lists (m, c), added in their order."""
    k = indices.shape[1]
    means = np.zeros((len(indices), values.shape[1]))
    for i in range(len(indices)):
        for t in range(k):
            for c in range(values.shape[1]):
                means[i, c] += values[indices[i, t], c] / k
    return means
