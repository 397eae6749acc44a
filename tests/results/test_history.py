from cns_dask.results.history import Changes, Drift, changes_in_words, drift_in_words

DRIFT = Drift(n_rows=200, n_new=50, outside=0.125, confidence=0.5, confidence_before=0.75)
CHANGES = Changes(births=(5, 6), deaths=(1,), splits=((2, (2, 7, 8)),), merges=((0, (0, 3)),), kept=0.987, drift=DRIFT)


def test_every_change_is_a_line():
    assert changes_in_words(CHANGES) == [
        "98.7% of the rows that can be compared keep their number",
        "cluster 5 is new",
        "cluster 6 is new",
        "cluster 1 is gone",
        "cluster 2 was split into 2, 7 and 8",
        "clusters 0 and 3 were merged into 0",
        drift_in_words(DRIFT),
    ]


def test_without_a_previous_fit_nothing_is_said():
    assert changes_in_words(None) == []


def test_drift_is_told_in_one_line():
    assert drift_in_words(DRIFT) == (
        "50 of 200 rows are new: confidence 0.500 under the old model, whose own rows have 0.750; 12.5% of them lie "
        "outside the old data"
    )
