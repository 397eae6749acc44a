"""Runs of single stages, without the rest of a fit."""

from cns_dask.execution.run import Run
from cns_dask.progress import Progress
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultWriter


class Told(Progress):
    """Progress that remembers what was told, and of every stage the planned and the finished pieces."""

    def __init__(self):
        super().__init__()
        self.lines, self.planned, self.finished = [], {}, {}

    @property
    def stages(self):
        return list(self.planned)

    def tell(self, line):
        self.lines.append(line)

    def _begin(self, name, total):
        self.planned[name], self.finished[name], self._name = total, 0, name

    def _advance(self):
        self.finished[self._name] += 1


def run_in(folder, rows_per_chunk, **arrays):
    """A run in a folder that holds these arrays; it goes on where an earlier one in the same folder has stopped."""
    root = Location(folder)
    run = Run(ResultWriter(root / "r.zarr", root / "scratch.zarr", root / "done"), Told())
    for name, values in arrays.items():
        plan = ArrayPlan(name.replace("__", "/"), values.shape, (rows_per_chunk, *values.shape[1:]))
        run.writer.create(plan)[...] = values
    return run
