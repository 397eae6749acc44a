import logging

import pytest

from cns_dask import warmup
from cns_dask.errors import OutputError


def test_a_worker_says_what_it_has_compiled(monkeypatch, caplog):
    monkeypatch.setattr(warmup, "warm_up", lambda: {"kernels": 1.25, "pynndescent": 40.0})
    with caplog.at_level(logging.INFO, "distributed.preloading"):
        warmup.dask_setup(None)
    assert caplog.messages == ["cns_dask is warmed up: kernels in 1.2 s, pynndescent in 40.0 s"]


def test_a_worker_that_cannot_be_warmed_joins_all_the_same(monkeypatch, caplog):
    def fail():
        raise OutputError("The disk is full.")

    monkeypatch.setattr(warmup, "warm_up", fail)
    with caplog.at_level(logging.WARNING, "distributed.preloading"):
        warmup.dask_setup(None)
    assert caplog.messages == ["cns_dask is not warmed up: The disk is full."]


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(warmup, "warm_up", fail)
    with pytest.raises(ZeroDivisionError):
        warmup.dask_setup(None)


def test_every_search_and_both_precisions_are_compiled():
    assert {settings.method for settings in warmup.FITS} == {"exact", "cells", "descent"}
    assert {settings.tol_of_grid(3000) for settings in warmup.FITS} == {1e-9, 1e-4}


def test_kernels_are_compiled_once_they_were_used():
    from cns_dask.demo import demo_points
    from cns_dask.pipeline import fit

    fit(demo_points(300), warmup.FITS[0])
    done, lost = warmup.compiled_kernels()
    assert {"smooth", "nearest_block"} <= set(done)
    assert not set(done) & set(lost)
