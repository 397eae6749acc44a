import dask
import dask.array as da
import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotEnoughMemoryError
from cns_dask.inputs.sampling import Sampling
from cns_dask.inputs.scan import scan
from cns_dask.jobs import prepare
from cns_dask.settings import Settings
from cns_dask.sizing import plan_sizes, plan_stages, size_overrides


def test_a_job_knows_its_rows_its_grid_and_all_stages_before_anything_runs(blobs):
    job = prepare(blobs, Settings(n_neighbors=(5, 9), lam=0.1))
    assert (job.n_rows, job.skips, job.grid.ks) == (600, False, (5, 9))
    assert [stage.name for stage in job.plan.stages] == [
        "preprocess", "points", "copies", "neighbors", "candidates", "evaluate", "communities", "absorption",
        "memberships",
    ]  # fmt: skip
    candidates = {step.name: step.tasks for step in job.plan.stage("candidates").steps}
    of_every_k = {"maxima": 2, "choose_candidates": 2, "nodes": 1}
    assert candidates == {"order": 1, "positions": 1, "renumber": 1, "walk": 1, "dimension": 1} | of_every_k
    assert job.graph_arrays == ("graph/indices", "graph/distances")


def test_rows_with_missing_values_are_counted_only_where_they_are_skipped(blobs):
    X = blobs.copy()
    X[[3, 500], 1] = np.nan
    assert prepare(X, Settings()).n_rows == 600  # an error when they are read
    job = prepare(X, Settings(missing="skip"))
    assert (job.n_rows, job.skips, job.sizes.n_rows) == (598, True, 598)
    assert job.clustered_rows(job.data.X).shape == (598, 5)
    assert [stage.name for stage in job.plan.stages][:3] == ["skip_codes", "clustered_rows", "preprocess"]
    assert job.plan.stage("clustered_rows").array("rows").shape == (598,)


def test_a_fit_that_keeps_numbers_plans_the_comparison(blobs):
    job = prepare(blobs, Settings(), previous=CNS().fit(blobs))
    assert [stage.name for stage in job.plan.stages][-2:] == ["match", "memberships"]
    assert job.plan.stage("match").n_recorded == -(-600 // job.graph_sizes.rows_per_chunk)


def test_a_given_graph_needs_no_search_and_must_be_long_enough(blobs):
    lists = (np.arange(600)[:, None] + np.arange(1, 9)) % 600
    job = prepare(None, Settings(n_neighbors=6), graph=lists)
    assert [stage.name for stage in job.plan.stages][:2] == ["neighbors", "candidates"]
    assert job.graph_arrays == ("graph/indices",)
    with pytest.raises(InvalidSettingError, match="lists 8 neighbours, and the largest k needs 19"):
        prepare(None, Settings(n_neighbors=20), graph=lists)
    with pytest.raises(InvalidDataError, match="data have 600 rows, and the graph has 10"):
        prepare(blobs, Settings(n_neighbors=3), graph=lists[:10] % 10)
    with pytest.raises(InvalidSettingError, match="nothing to cluster"):
        prepare(None, Settings())


def test_the_fingerprint_tells_data_and_settings_apart_and_not_chunks(blobs):
    def fingerprint(X, **settings):
        return prepare(X, Settings(**settings), hashed=True).fingerprint(None)

    other = blobs.copy()
    other[7, 2] += 1e-9
    assert fingerprint(blobs) == fingerprint(blobs.copy())
    assert fingerprint(blobs)["data"] != fingerprint(other)["data"]
    assert fingerprint(blobs)["settings"] != fingerprint(blobs, tol=1e-8)["settings"]


def test_files_that_change_during_a_fit_are_refused_by_their_path(blobs, tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, blobs)
    job = prepare(file, Settings(), hashed=True)
    fingerprint = job.fingerprint(None)
    job.check_unchanged(fingerprint)
    np.save(file, blobs[:-1])
    with pytest.raises(InvalidDataError, match=f"changed while they were clustered: {file}"):
        job.check_unchanged(fingerprint)


def test_the_cluster_that_is_clustered_further_is_an_integer(blobs):
    model = CNS().fit(blobs)
    assert prepare(blobs, Settings(), within=(model, np.int64(1))).within[1] == 1
    for cluster in (True, False, 0.0, 99, "0", None, np.bool_(True)):
        with pytest.raises(InvalidSettingError, match="The result has no cluster .*: it has"):
            prepare(blobs, Settings(), within=(model, cluster))


def test_sizes_may_be_overridden_by_name_in_the_configuration_of_dask():
    assert size_overrides() == {}
    usual, _ = plan_sizes(100_000, 8, Settings())
    with dask.config.set({"cns_dask.sizes": {"n-cells": 7, "block_width": 4}}):
        graph, smoothing = plan_sizes(100_000, 8, Settings())
    assert (graph.n_cells, smoothing.block_width) == (7, 4)
    assert graph.rows_per_chunk == usual.rows_per_chunk
    with (
        dask.config.set({"cns_dask.sizes": {"rows": 7}}),
        pytest.raises(InvalidSettingError, match=r"unknown names \['rows'\]"),
    ):
        size_overrides()


def test_more_rows_need_more_of_everything():
    plans = [plan_stages(8, *plan_sizes(n_rows, 8, Settings())) for n_rows in (10**5, 10**6)]
    for quantity in ("disk_bytes", "n_tasks"):
        assert getattr(plans[1], quantity) > 1.5 * getattr(plans[0], quantity)
    assert plans[1].worker_bytes(1) > plans[0].worker_bytes(1)


def test_a_job_of_a_sample_counts_its_rows_and_reads_nothing_for_it(blobs, monkeypatch):
    monkeypatch.setattr("cns_dask.inputs.sampling.LEAST_ROWS", 100)
    monkeypatch.setattr("cns_dask.jobs.scan", lambda X, rows, **options: scan(da.full_like(X, np.nan), rows, **options))
    job = prepare(blobs, Settings(), sample=200)
    assert job.skips
    assert job.n_rows == job.sizes.n_rows == Sampling(200, 600, 0).sample.count(slice(0, 600))
    names = [stage.name for stage in job.plan.stages]
    assert (names[:3], names[-1]) == (["sample", "clustered_rows", "preprocess"], "assign")


def test_workers_that_are_too_small_are_told_of_a_sample_that_fits(monkeypatch):
    X = da.zeros((50_000_000, 16), chunks=(1_000_000, 16))

    def limits(gibibytes):
        processes = [("worker a", 1, gibibytes * 2**30)]
        for module in ("jobs", "execution.cluster"):
            monkeypatch.setattr(f"cns_dask.{module}.processes", lambda: iter(processes))

    for gibibytes, size in ((4, 1_000_000), (1.9, 300_000)):
        limits(gibibytes)
        with pytest.raises(NotEnoughMemoryError, match=rf"more memory. Or cluster a sample, .* sample={size} needs"):
            prepare(X, Settings())
        assert prepare(X, Settings(), sample=size).n_rows == pytest.approx(size, rel=0.01)
    limits(1.5)
    with pytest.raises(NotEnoughMemoryError, match="sample=100000 needs"):
        prepare(X, Settings(), sample=1_000_000)
    limits(0.5)
    with pytest.raises(NotEnoughMemoryError, match="workers with more memory.$"):
        prepare(X, Settings())
