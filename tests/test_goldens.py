"""Complete intermediate results of a trusted run, from the stored rows on."""

import numpy as np
import oracle
import pytest

from cns_dask.pipeline import fit
from cns_dask.settings import Settings
from cns_dask.smoothing.candidates import find_candidates

NAMES = [
    "blobs2000_Euclidean", "blobs500_Euclidean", "blobs500_cosine", "digits_Euclidean", "digits_cap50_Euclidean",
    "digits_cosine", "gauss60_bigk", "wdbc_Euclidean", "wdbc_cosine", "wine_Euclidean", "wine_cosine",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tol", "atol"), [(None, 1e-4), (1e-13, 1e-8)])
def test_golden(goldens, name, tol, atol):
    golden = dict(np.load(goldens / f"{name}.npz", allow_pickle=False))
    result = fit(
        golden["X"],
        Settings(
            metric=str(golden["metric"]),
            n_neighbors=golden["ks"],
            lam=golden["lams"],
            max_candidates=50 if "cap50" in name else 300,
            scale=False,
            selection="paper",
            **({"tol": tol} if tol else {}),
        ),
    )
    choice = result.choice
    assert (choice.n_neighbors, choice.n_clusters) == (golden["chosen_k"], golden["chosen_K"])
    assert choice.lam == pytest.approx(float(golden["chosen_lam"]))
    np.testing.assert_array_equal(result.labels.compute(), golden["labels"])
    np.testing.assert_array_equal(result.graph.indices.compute(), golden["knn_index"])
    np.testing.assert_allclose(result.graph.distances.compute(), golden["knn_dist"], atol=1e-12)
    np.testing.assert_allclose(result.memberships.compute(), golden["prob"], atol=atol / 10)

    available = ~np.isnan(result.criterion)
    assert ((golden["criterion"] == -1) == ~available).all()  # the golden's mark for too few candidates
    np.testing.assert_allclose(result.criterion[available], golden["criterion"][available], atol=atol)

    for k in golden["ks"]:
        rows = golden["candidates"][golden["candidates"][:, 0] == k][:, 2]  # (k, position, row)
        np.testing.assert_array_equal(candidates(result, k), rows)
        for at_lam, lam in enumerate(result.grid.lams):
            of_cell = golden["selected"][(golden["selected"][:, :2] == (k, at_lam + 1)).all(axis=1)]
            ours, theirs = result.picks[result.grid.ks.index(k), at_lam], of_cell[np.argsort(of_cell[:, 2]), 3]
            assert_same_up_to_ties(ours[ours >= 0], theirs, result, k, lam)


def candidates(result, k):
    neighbors = result.graph.indices[:, :k].compute()
    return find_candidates(neighbors, result.points.compute(), result.settings.max_candidates).rows


def assert_same_up_to_ties(ours, theirs, result, k, lam):
    """Equal, or both greedy: the pick of every step is as good as the best, to rounding."""
    assert len(ours) == len(theirs)
    if np.array_equal(ours, theirs):
        return
    rows = candidates(result, k)
    x = oracle.columns(oracle.transition(result.graph.indices[:, :k].compute()), lam, rows)
    s, c = x.sum(0), x.T @ x
    for picks in (ours, theirs):
        at = [int(np.flatnonzero(rows == pick)[0]) for pick in picks]
        assert s[at[0]] == pytest.approx(s.max(), rel=1e-9)
        for step in range(1, len(at)):
            worst = c[:, at[:step]].max(1) / s**2
            worst[at[:step]] = np.inf
            assert worst[at[step]] == pytest.approx(worst.min(), rel=1e-9)
