import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cns_dask.results.samples import Agreement, Sample, agreement_of, sample_in_words
from cns_dask.results.scales import count_pairs


def test_agreement_is_that_of_the_labels_behind_the_table():
    rng = np.random.default_rng(0)
    first = rng.integers(4, size=500)
    second = np.where(rng.random(500) < 0.8, (first + 1) % 3, rng.integers(3, size=500))
    agreement = agreement_of(count_pairs(first, second))
    assert agreement.rand == pytest.approx(adjusted_rand_score(first, second))
    assert (agreement.n_rows, agreement.n_clusters) == (500, (4, 3))
    assert 0.5 < agreement.same < 0.9


def test_no_rows_to_compare_are_no_agreement():
    assert agreement_of(np.zeros((2, 3), np.int64)) == Agreement(0, 0.0, 0.0, (2, 3))


def test_words_tell_what_was_measured_and_what_would_measure_it():
    assert "was not measured: check_sample=True does" in sample_in_words(Sample(0.1, 103, 0), 1000)
    words = sample_in_words(Sample(100, 103, 0, Agreement(300, 0.91, 0.955, (4, 1))), 1000)
    assert "103 of 1000 rows were clustered" in words
    assert "A second sample gave 1 cluster (4 here), and the same one for 95.5% of 300 rows of neither" in words
