import numpy as np
import pytest
from sklearn.datasets import make_moons

from cns_dask import CNS
from cns_dask.errors import ChoiceWarning
from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import PARTS, Choice
from cns_dask.smoothing.scales import Evidence, Selection
from cns_dask.smoothing.verdict import (
    Verdict,
    clusters_in_words,
    count_confident,
    judge,
    low_confidence,
    runner_up_of_paper,
    runner_up_of_scales,
)

GRID = Grid((5, 10, 15), (0.1, 0.2, 0.3), 6, 8)
RISING = "The criterion still rises at the edge of the grid, where K changes: {} may be better."


def selection(used, *, paper=None, scales=None, structure=9.0):
    return Selection(used, "for a reason", paper or used, scales, 8.0, structure, 5.0)


def by_paper(n_clusters, k=10, lam=0.2):
    return Choice(k, lam, n_clusters, 1.0, 0.1)


def by_scales(n_clusters):
    return Choice(5, 0.1, n_clusters, 9.0, 1.0, "scales")


def surface_with(best, second, value=0.9):
    """The criterion of every (k, lam, K), largest at (10, 0.2, best), next at (10, 0.2, second)."""
    surface = np.tile(0.01 * np.arange(6.0), (3, 3, 1))
    surface[1, 1, best - 1], surface[1, 1, second - 1] = 1, value
    return surface


def parts_of(surface, noise, at):
    """The criterion of every part: that of all, with noise for one K, with mean 0."""
    parts = np.tile(surface, (PARTS, 1, 1, 1))
    parts[:, :, :, at - 1] += noise * np.tile([1, -1], PARTS // 2)[:, None, None]
    return parts


#: Standard error of a mean over the parts, where they differ from it by 1.
ERROR = np.sqrt(PARTS / (PARTS - 1)) / np.sqrt(PARTS)
#: Noise of the next best number at an edge that leaves it three standard errors behind, with a criterion of 0.8, not 1.
UNCLEAR = 0.2 / (3 * ERROR)
#: Evidence of three ks for K = 1, ..., 8: nothing stands out.
NOTHING = Evidence(np.zeros((3, 8)), np.zeros((3, 8)), 8.0, 1000)


def evidence_for(**values):
    """Evidence by K as k2=..., one value for all ks or three."""
    evidence = np.zeros((3, 8))
    for name, value in values.items():
        evidence[:, int(name[1:]) - 1] = value
    return Evidence(evidence, evidence, 8.0, 1000)


def judged(chosen, evidence=NOTHING, surface=None, noise=0.0, n_clusters=None, second=3):
    surface = surface_with(chosen.paper.n_clusters, second) if surface is None else surface
    return judge(chosen, GRID, surface, parts_of(surface, noise, second), evidence, n_clusters)


@pytest.mark.parametrize(
    ("errors", "sentence", "doubts"),
    [
        (20.0, "4 clusters, clearly: next best is 3, behind by 20 times the noise.", ()),
        (4.01, "4 clusters, clearly: next best is 3, behind by 4 times the noise.", ()),
        (3.0, "4 clusters, probably: next best is 3, behind by 3 times the noise.", ()),
        (
            0.9,
            "4 clusters, just: next best is 3, as good within noise.",
            ("3 clusters are as good as 4 within noise.",),
        ),
    ],
)
def test_the_paper_s_choice_is_as_sure_as_the_parts_of_the_rows_agree(errors, sentence, doubts):
    assert judged(selection(by_paper(4)), noise=0.1 / ERROR / errors) == Verdict(sentence, doubts)


def test_parts_that_do_not_differ_at_all_leave_no_noise():
    assert (
        judged(selection(by_paper(4))).sentence == "4 clusters, clearly: next best is 3, behind by 99 times the noise."
    )


@pytest.mark.parametrize(
    ("second", "sentence", "doubts"),
    [
        (4.5, "2 clusters, clearly: next best is 5 with 50 % of the evidence.", ()),
        ([6.5, 7, 7.5], "2 clusters, probably: next best is 5 with 78 % of the evidence.", ()),
        (
            [0, 8, 18],
            "2 clusters, just: next best is 5 with 96 % of the evidence.",
            ("5 clusters are as good as 2 within noise.",),
        ),
        ([0, 0, 12], "2 clusters, clearly: next best is 5 with 44 % of the evidence.", ()),
    ],
)
def test_a_choice_by_scales_is_as_sure_as_the_evidence_of_the_ks_agrees(second, sentence, doubts):
    chosen = selection(by_scales(2), paper=by_paper(2), scales=by_scales(2))
    assert judged(chosen, evidence_for(k2=9, k5=second)) == Verdict(sentence, doubts)


def test_the_paper_s_choice_is_clear_if_the_evidence_is():
    chosen = selection(by_paper(4), scales=by_scales(4))
    found = judged(chosen, evidence_for(k4=9, k2=3), noise=1)
    assert found == Verdict("4 clusters, clearly: next best is 2 with 33 % of the evidence.", ())
    found = judged(chosen, evidence_for(k4=9, k2=8), noise=0.1 / ERROR / 3)  # else the criterion tells
    assert found.sentence == "4 clusters, probably: next best is 3, behind by 3 times the noise."


def test_what_the_other_way_to_choose_would_give_is_told_if_it_differs():
    chosen = selection(by_paper(4), scales=by_scales(2))
    assert judged(chosen).sentence.endswith(" Scales alone would choose 2.")
    nothing = selection(by_paper(4), scales=by_scales(2), structure=1.0)
    assert judged(nothing).sentence.endswith(" Scales alone would choose 1.")
    chosen = selection(by_scales(2), paper=by_paper(6), scales=by_scales(2))
    assert judged(chosen, evidence_for(k2=9, k3=1)).sentence.endswith("The paper would choose 6.")


def test_no_structure():
    whole, weak = Choice(5, 0.1, 1, 1.24, None, "scales"), evidence_for(k2=1.2, k5=1)
    said = "1 cluster: no number of clusters up to 8 stands out from data without structure "
    why = "(evidence 1.2, and 3.0 is needed). "
    chosen = selection(whole, paper=by_paper(5), structure=1.24)
    assert judged(chosen, weak) == Verdict(f"{said}{why}The paper would choose 5.", ())
    chosen = selection(whole, paper=by_paper(6), structure=1.24)  # as many as are tried
    more = "If there may be more, raise max_clusters. "
    assert judged(chosen, weak) == Verdict(f"{said}{why}{more}The paper would choose 6.", ())


def test_a_number_that_was_given_is_not_in_doubt():
    for used in (by_paper(6), by_scales(6)):
        assert judged(selection(used), n_clusters=6) == Verdict("6 clusters, as asked for.", ())
    assert judged(selection(by_paper(1)), n_clusters=1).sentence == "1 cluster, as asked for."


def test_the_largest_number_that_is_tried_is_in_doubt():
    found = judged(selection(by_paper(6)))
    assert found.sentence == "6 clusters, but that is the largest number allowed."
    assert found.doubts == ("K = 6 is the largest number of clusters that is tried. Raise max_clusters.",)
    chosen = selection(by_scales(8), paper=by_paper(6), scales=by_scales(8))  # scales have a limit of their own
    found = judged(chosen, evidence_for(k8=9, k3=1))
    assert found.sentence.startswith("8 clusters, but that is the largest number allowed.")
    assert found.doubts == ("K = 8 is the largest number of clusters that is tried. Raise max_clusters.",)
    six = selection(by_scales(6), paper=by_paper(6), scales=by_scales(6))
    assert judged(six, evidence_for(k6=9, k3=1)) == Verdict(
        "6 clusters, clearly: next best is 3 with 11 % of the evidence.", ()
    )


def edge_surface(at_k, at_lam):
    """The best is 4 clusters at an edge, and one step before, along k and along lam, it is 3."""
    surface = surface_with(4, 3)
    surface[1, 1] = surface[0, 0]
    surface[at_k, at_lam, [3, 2]] = 1, 0.5
    inner = (1 if at_k != 1 else at_k, at_lam), (at_k, 1 if at_lam != 1 else at_lam)
    for place in inner:
        if place != (at_k, at_lam):
            surface[place][2] = 0.8
    return surface


@pytest.mark.parametrize(
    ("at_k", "at_lam", "words"),
    [
        (0, 1, "smaller k than 5"),
        (2, 1, "larger k than 15"),
        (1, 0, "smaller lam than 0.1"),
        (1, 2, "larger lam than 0.3"),
        (2, 2, "larger k than 15 may be better, larger lam than 0.3"),
    ],
)
def test_a_criterion_that_rises_at_the_edge_of_the_grid_is_in_doubt(at_k, at_lam, words):
    chosen = selection(by_paper(4, GRID.ks[at_k], GRID.lams[at_lam]))
    surface = edge_surface(at_k, at_lam)
    assert judged(chosen, surface=surface, noise=UNCLEAR).doubts == (RISING.format(words),)
    assert judged(chosen, surface=surface).doubts == ()  # the next best number is far behind


def test_an_edge_is_no_doubt_if_the_evidence_confirms_the_number():
    chosen = selection(by_paper(4, 15), scales=by_scales(4))
    surface = edge_surface(2, 1)
    assert judged(chosen, evidence_for(k4=9, k2=4), surface, UNCLEAR).doubts == ()
    assert judged(chosen, evidence_for(k4=9, k2=5), surface, UNCLEAR).doubts == (RISING.format("larger k than 15"),)


def test_an_edge_where_the_number_of_clusters_stays_the_same_is_no_doubt():
    surface = edge_surface(2, 1)
    surface[1, 1, 3] = 0.9
    assert judged(selection(by_paper(4, 15)), surface=surface, noise=UNCLEAR).doubts == ()
    alone = Grid((5,), (0.1,), 6, 8)
    surface = surface_with(4, 3)[1:2, 1:2]
    assert judge(selection(by_paper(4, 5, 0.1)), alone, surface, parts_of(surface, 0, 3), NOTHING).doubts == ()


def test_no_other_number():
    surface = np.full((3, 3, 6), np.nan)
    surface[:, :, 0] = 0
    assert runner_up_of_paper(by_paper(1), GRID, surface, np.tile(surface, (PARTS, 1, 1, 1)), 1000) is None
    assert judged(selection(by_paper(1)), surface=surface).sentence == "1 cluster: no other number was possible."
    for evidence in (NOTHING, evidence_for(k2=9), evidence_for(k3=9, k4=2)):
        assert runner_up_of_scales(by_scales(2), evidence) is None
    assert runner_up_of_scales(by_scales(9), evidence_for(k2=9, k3=1)) is None


def test_a_runner_up_of_one_k_has_no_noise():
    evidence = evidence_for(k2=9, k3=6).values[:1]
    other = runner_up_of_scales(by_scales(2), Evidence(evidence, evidence, 8.0, 1000))
    assert (other.n_clusters, other.errors, other.share) == (3, np.inf, pytest.approx(2 / 3))


def test_rows_that_do_not_know_their_cluster():
    assert low_confidence(0.11) is None
    assert low_confidence(0.09) == (
        "Only 9 % of the rows prefer their cluster clearly (confidence above 0.5): the clusters run into one another."
    )
    labels = np.array([0, 0, 1, 0, -1, -3])
    assert count_confident(np.array([0.5, 0.51, 1.0, 0.0, 0.0, 0.0]), labels) == (2, 2, 1)


def test_numbers_in_words():
    assert [clusters_in_words(number) for number in (1, 2)] == ["1 cluster", "2 clusters"]


def test_a_doubt_reaches_the_caller():
    X, _ = make_moons(600, noise=0.06, random_state=0)
    with pytest.warns(ChoiceWarning, match="K = 5 is the largest number of clusters that is tried. Raise max_clusters"):
        model = CNS(selection="paper", max_clusters=5).fit(X)
    assert model.n_clusters_ == 5
    verdict = model.result_.verdict
    assert verdict.sentence.startswith("5 clusters, but that is the largest number allowed.")
    assert verdict.doubts[0].startswith("K = 5 is the largest")


def test_a_clear_choice_warns_of_nothing(recwarn):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(center, 1, (150, 4)) for center in (0, 20, 40)])
    model = CNS().fit(X)
    assert model.n_clusters_ == 3
    assert model.result_.verdict.doubts == ()
    assert not [each for each in recwarn if issubclass(each.category, ChoiceWarning)]
