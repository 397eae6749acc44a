"""Fits on real worker processes."""

import asyncio
import os
import pickle
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from generators import mixture
from processes import local_cluster

from cns_dask import CNS, neighbor_graph
from cns_dask.errors import InvalidDataError, NotEnoughMemoryError, SchedulerError
from cns_dask.execution.cluster import active_client, check_location_is_shared, check_memory
from cns_dask.pipeline import fit
from cns_dask.results.predict import Predictor
from cns_dask.settings import Settings
from cns_dask.sizing import plan_sizes, plan_stages
from cns_dask.storage.locations import Location


def test_two_processes_give_the_result_of_one(client, blobs, small_chunks):
    assert active_client() is client
    distributed = fit(blobs, Settings())
    with dask.config.set(scheduler="threads"):
        assert active_client() is None
        local = fit(blobs, Settings())
    np.testing.assert_array_equal(distributed.labels.compute(), local.labels.compute())
    np.testing.assert_allclose(distributed.memberships.compute(), local.memberships.compute(), rtol=0, atol=1e-13)


def test_column_blocks_and_cells_spread_over_the_workers(client, blobs):
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Recorder(SchedulerPlugin):
        name = "recorder"

        def __init__(self):
            self.seen = {}

        def transition(self, key, start, finish, *args, worker=None, **kwargs):
            if start == "processing" and finish == "memory":
                self.seen.setdefault(str(key).split("-")[0], set()).add(worker)

    client.register_plugin(Recorder())
    rng = np.random.default_rng(0)
    X = da.from_array(rng.standard_normal((4000, 6)), chunks=(500, 6))
    model = CNS(n_neighbors=(8, 16)).fit(X)
    with dask.config.set(scheduler="threads"):
        np.testing.assert_array_equal(CNS(n_neighbors=(8, 16)).fit(X).labels_.compute(), model.labels_.compute())
    seen = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins["recorder"].seen)
    assert len(seen["solve"]) == 2  # tasks have the names of their steps
    assert len(seen["gram"]) == 2
    assert len(seen["nodes"]) == 2
    assert len(seen["search_block"]) == 2


def test_rows_in_memory_travel_with_the_tasks_that_need_them(client, blobs):
    model = CNS(n_neighbors=8, lam=0.1).fit(blobs)
    for _ in range(10):
        np.testing.assert_array_equal(model.predict(blobs), model.labels_)


class DeadlyPredictor(Predictor):
    """Ends the process that first asks it about the given rows."""

    def __init__(self, model, fuse):
        super().__init__(model)
        self.fuse = fuse

    def __reduce__(self):
        return DeadlyPredictor, (self.result.path, self.fuse)

    def clustering(self, rows, first_row=0):
        if first_row and not self.fuse.exists():
            self.fuse.touch()
            os._exit(1)
        return super().clustering(rows, first_row)


@pytest.mark.slow
def test_a_worker_that_dies_does_not_end_a_prediction_of_rows_in_memory(blobs, tmp_path, monkeypatch):
    model = CNS(n_neighbors=8, lam=0.1).fit(blobs, out=tmp_path / "r.zarr")
    monkeypatch.setattr("cns_dask.results.predict.Predictor", lambda model: DeadlyPredictor(model, tmp_path / "fuse"))
    with local_cluster() as cluster, Client(cluster):
        labels = model.predict(np.concatenate([blobs] * 40))  # several chunks
    np.testing.assert_array_equal(labels, np.concatenate([model.labels_] * 40))
    assert (tmp_path / "fuse").exists()


def fit_there(X):
    model = CNS(n_neighbors=8, lam=0.1).fit(X)
    return model.labels_, model.predict(X), model.result_.at(2).labels.compute(), neighbor_graph(X, 3).indices.compute()


def test_tasks_fit_and_predict_while_they_hold_every_thread(client, blobs):
    """Two workers with one thread each: who waits for others must make room for them."""
    expected = fit_there(blobs)
    tasks = [client.submit(fit_there, blobs, pure=False) for _ in range(4)]
    for task in tasks:
        for ours, theirs in zip(task.result(timeout=120), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_fitted_model_goes_into_tasks_without_computing_anything(client, blobs):
    model = CNS(n_neighbors=8, lam=0.1).fit(blobs)
    layers = Path(model.result_.path, "at")
    assert "cluster_layers_" in dir(model)
    assert client.submit(lambda model: model.n_clusters_, model).result(timeout=60) == model.n_clusters_
    assert not layers.exists()


def test_an_asynchronous_client_is_refused_and_the_way_to_use_it_works(cluster, blobs):
    async def within_a_loop():
        async with Client(cluster.scheduler_address, asynchronous=True):
            for call in (lambda: CNS().fit(blobs), lambda: model.predict(blobs), lambda: neighbor_graph(blobs, 3)):
                with pytest.raises(SchedulerError, match=r"asynchronous.*await asyncio.to_thread\(model.fit, X\)"):
                    call()
            return await asyncio.to_thread(CNS(n_neighbors=8, lam=0.1).fit, blobs)

    model = CNS(n_neighbors=8, lam=0.1).fit(blobs)
    np.testing.assert_array_equal(asyncio.run(within_a_loop()).labels_, model.labels_)


def test_neither_arrays_nor_files_travel_inside_the_graphs_of_a_fit(client, tmp_path):
    X = np.random.default_rng(2).standard_normal((3000, 500))  # 12 MB
    np.save(tmp_path / "x.npy", X)
    settings = Settings(n_neighbors=8, lam=0.1, max_components=5)
    of_array, of_file = fit(X, settings), fit(tmp_path / "x.npy", settings)
    np.testing.assert_array_equal(of_array.labels.compute(), of_file.labels.compute())


def test_errors_of_a_worker_reach_the_caller_as_they_are(client, tmp_path):
    X = np.array([[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [2.0, 1.0], [-2.0, -1.0]])
    with pytest.raises(InvalidDataError, match=r"their norm is 0\): 2"):
        fit(da.from_array(X), Settings(metric="cosine"), out=tmp_path / "r.zarr")
    assert list(tmp_path.iterdir()) == []


def test_prediction_is_lazy_and_runs_on_the_workers(client, blobs):
    model = CNS().fit(da.from_array(blobs, chunks=(100, 5)))
    assert isinstance(model.labels_, da.Array)
    predicted = model.predict(da.from_array(blobs, chunks=(150, 5)))
    assert isinstance(predicted, da.Array)
    np.testing.assert_array_equal(predicted.compute(), model.labels_.compute())


def test_workers_are_checked_before_anything_runs(client, tmp_path):
    with pytest.raises(NotEnoughMemoryError, match=r"MiB of memory on worker tcp://"):
        check_memory(lambda threads: 10**15)
    with pytest.raises(SchedulerError, match=r"Some workers cannot see the folder of the result \(.*nowhere\)"):
        check_location_is_shared(Location(tmp_path / "nowhere"))


@pytest.mark.slow
def test_workers_stay_within_their_planned_memory(tmp_path):
    """The plan says what a worker needs; here it is seen, in real processes that fit many rows."""
    import os
    import threading

    import psutil
    from distributed import Client

    n_rows, settings = 150_000, Settings()
    X = da.from_array(mixture(n_rows, 8, n_clusters=25, spread=2, seed=0), chunks=(20_000, 8))
    planned = plan_stages(8, *plan_sizes(n_rows, 8, settings)).worker_bytes(1)
    X.to_zarr(str(tmp_path / "x.zarr"))
    with (
        local_cluster() as cluster,
        Client(cluster) as client,
    ):
        processes = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
        seen, done = [], threading.Event()

        def watch():
            while not done.wait(0.02):
                seen.append([process.memory_info().rss for process in processes])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            fit(tmp_path / "x.zarr", settings, out=tmp_path / "r.zarr")
        finally:
            done.set()
            watcher.join()
    assert np.max(seen) <= planned
    assert np.max(seen) > planned / 4  # nor is the plan a guess far above


def test_a_worker_holds_the_graph_of_a_k_as_a_file_that_it_maps(client, blobs, monkeypatch):
    """Not inside tasks: what is sent is smaller than the graph by far."""
    from cns_dask.execution.run import RunningStage
    from cns_dask.smoothing import grid

    sent = []
    task = RunningStage.task

    def weighed(self, step, piece):
        if piece.function is grid.solve_and_write:
            sent.append(len(pickle.dumps(piece.arguments, protocol=5)))
        return task(self, step, piece)

    monkeypatch.setattr(RunningStage, "task", weighed)
    X = np.random.default_rng(3).standard_normal((4000, 3))
    fit(X, Settings(n_neighbors=20, lam=0.1, max_candidates=32, max_clusters=5))
    assert sent
    assert max(sent) < 4 * 4000 * 20 / 10
