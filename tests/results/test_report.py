import builtins
from html.parser import HTMLParser

import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.errors import CNSError, OutputError
from cns_dask.results.report import sample_rows, write_report


@pytest.fixture(scope="module")
def result(blobs):
    return CNS().fit(blobs).result_


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(result, tmp_path):
    write_report(result, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & parser.seen
    assert page.count("<svg") == 3
    assert f"{result.choice.n_clusters} clusters in 600 rows" in page
    assert str(result.representatives[0]) in page


def test_an_existing_page_is_kept(result, tmp_path):
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputError, match="must not exist"):
        write_report(result, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"
    write_report(result, tmp_path / "r.html", overwrite=True)
    assert "<svg" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("n_features", [1, 2, 5])
def test_samples_have_two_dimensions(n_features, blobs):
    points, labels, confidence = sample_rows(CNS(n_clusters=2).fit(blobs[:200, :n_features]).result_)
    assert points.shape == (200, 2)
    assert len(labels) == len(confidence) == 200


def test_large_results_are_sampled_evenly(result, monkeypatch):
    monkeypatch.setattr("cns_dask.results.report.SAMPLE_ROWS", 100)
    points, labels, _ = sample_rows(result)
    assert len(points) == 100
    np.testing.assert_array_equal(labels, result.labels.compute()[::6])


def test_without_matplotlib_the_error_says_what_to_install(result, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CNSError, match=r"pip install 'cns_dask\[report\]'"):
        write_report(result, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_were_left_out_do_not_shift_the_picture(blobs):
    X = blobs.copy()
    X[::7] = np.nan
    points, labels, confidence = sample_rows(CNS(missing="skip").fit(X).result_)
    whole = CNS().fit(X[~np.isnan(X[:, 0])])
    assert len(points) == len(labels) == len(confidence) == 600 - len(X[::7])
    np.testing.assert_array_equal(labels, whole.labels_)
