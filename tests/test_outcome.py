import numpy as np

from cns_dask import CNS
from cns_dask.inputs.sampling import Sampling
from cns_dask.jobs import prepare
from cns_dask.outcome import describe_sample
from cns_dask.results.samples import Agreement
from cns_dask.settings import Settings


def test_a_sample_is_described_as_it_was_asked_for_and_drawn(blobs, monkeypatch):
    monkeypatch.setattr("cns_dask.inputs.sampling.LEAST_ROWS", 100)
    assert describe_sample(prepare(blobs, Settings()), 0, None) is None
    sample = describe_sample(prepare(blobs, Settings(), sample=0.5), 3, Agreement(9, 1.0, 1.0, (2, 2)))
    assert (sample.size, sample.n_skipped, sample.agreement.n_rows) == (0.5, 3, 9)
    assert sample.n_rows == Sampling(0.5, 600, 0).sample.count(slice(0, 600))


def test_skipped_rows_are_no_rows_that_prefer_no_cluster(blobs):
    X = blobs.copy()
    X[50:, 0] = np.nan
    result = CNS(missing="skip", n_neighbors=5, lam=0.05, n_clusters=2).fit(X).result_
    assert result.n_skipped == 550
    assert result.details["n_unreached"] <= 50
