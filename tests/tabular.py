"""Lazy tables for tests, and a count of the tasks that run."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.callbacks import Callback

NAMES = list("abcde")


class Counted(Callback):
    """Counts tasks that run."""

    def __init__(self):
        super().__init__(posttask=self._count)
        self.tasks = []

    def _count(self, key, *_):
        self.tasks.append(dask.utils.key_split(key))


def parts(X, n_parts):
    """A table in so many partitions of unknown length, one of them empty, with words as index."""
    cuts = np.array_split(np.arange(len(X)), n_parts - 1)
    cuts.insert(3, np.array([], int))
    meta = pd.DataFrame({**dict.fromkeys(NAMES, pd.Series(dtype=float)), "note": pd.Series(dtype="string")})
    meta.index = pd.Index([], dtype="string", name="id")

    def part(rows):
        frame = pd.DataFrame(X[rows], columns=NAMES).assign(note=pd.array([f"n{row}" for row in rows], "string"))
        frame.index = pd.Index([f"id {row}" for row in rows], dtype="string", name="id")
        return frame

    return dd.from_map(part, cuts, meta=meta)
