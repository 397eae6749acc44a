import numpy as np
import pytest

from cns_dask import CNS, open_result
from cns_dask.seeds import LARGEST_SEED, chosen_seed
from cns_dask.storage.layout import Kind
from cns_dask.storage.outputs import new_output


def test_without_a_seed_every_fit_draws_another_and_stores_it(blobs):
    seeds = {CNS(random_state=None).fit(blobs[:100]).result_.settings.random_state for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= seed <= LARGEST_SEED for seed in seeds)


def test_a_fit_can_be_repeated_with_the_seed_that_was_drawn():
    X = np.random.default_rng(0).normal(size=(3000, 3))
    first = CNS(random_state=None).fit(X, sample=1000)
    again = CNS(random_state=first.result_.settings.random_state).fit(X, sample=1000)
    np.testing.assert_array_equal(again.memberships_, first.memberships_)


def test_what_is_finished_is_taken_whatever_its_seed(blobs, tmp_path):
    out = tmp_path / "r.zarr"
    first = CNS(random_state=None).fit(blobs[:100], out=out).result_.settings.random_state
    assert CNS(random_state=None).fit(blobs[:100], out=out).result_.settings.random_state == first
    assert chosen_seed(None, out, overwrite=False) == first
    CNS(random_state=None).fit(blobs[:100], out=out, overwrite=True)
    assert open_result(out).settings.random_state != first


def test_unfinished_work_goes_on_with_its_seed(tmp_path):
    out, work = tmp_path / "r.zarr", {"settings": {"random_state": 12345}}
    with pytest.raises(KeyboardInterrupt), new_output(out, Kind.RESULT, work, {}):
        raise KeyboardInterrupt
    assert chosen_seed(None, out, overwrite=False) == chosen_seed(None, out, overwrite=True) == 12345
    assert chosen_seed(3, out, overwrite=False) == 3


@pytest.mark.parametrize("work", [{}, {"settings": None}, {"settings": {"random_state": "x"}}, {"settings": {}}])
def test_work_without_a_seed_does_not_matter(tmp_path, work):
    out = tmp_path / "r.zarr"
    with pytest.raises(KeyboardInterrupt), new_output(out, Kind.RESULT, work, {}):
        raise KeyboardInterrupt
    assert 0 <= chosen_seed(None, out, overwrite=False) <= LARGEST_SEED
