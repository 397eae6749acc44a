import builtins
import errno
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.errors import CNSError, OutputError
from cns_dask.results.history import changes_in_words
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
    assert page.count("<svg") == 4
    assert f"{result.choice.n_clusters} clusters in 600 rows" in page
    for cluster, size, representative in zip(result.clusters, result.sizes(), result.representatives, strict=True):
        assert f"<tr><td>{cluster}</td><td>{size}</td><td>{representative}</td></tr>" in page
    assert "Since the previous fit" not in page


def test_an_existing_page_is_kept(result, tmp_path):
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputError, match="r.html already exists. Choose another page"):
        write_report(result, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"
    write_report(result, tmp_path / "r.html", overwrite=True)
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_pages_that_cannot_be_written(result, tmp_path):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(OutputError, match="is not a file, but a folder or a device. Give the name of a file"):
            write_report(result, path, overwrite=True)
    with pytest.raises(OutputError, match="The folder of the output, .*nowhere, does not exist"):
        write_report(result, tmp_path / "nowhere" / "r.html")


def test_a_page_is_written_whole_or_not_at_all(result, tmp_path, monkeypatch):
    (tmp_path / "r.html").write_text("mine")

    def fail(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    for name in ("r.html", "new.html"):
        with pytest.raises(OutputError, match=f"{name} cannot be written .*No space left"):
            write_report(result, tmp_path / name, overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("r.html", "mine")]
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OutputError, match="folder of the output, .* is not writable"):
        write_report(result, tmp_path / "r.html", overwrite=True)


def test_changes_since_the_previous_fit_are_listed(result, blobs, tmp_path):
    merged = CNS(n_clusters=result.choice.n_clusters - 1).fit(blobs, previous=result).result_
    write_report(merged, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    lines = changes_in_words(merged.changes)
    assert any("were merged into" in line for line in lines)
    items = "".join(f"<li>{line}</li>" for line in lines)
    assert f"<h2>Since the previous fit</h2><ul>{items}</ul>" in page


def test_what_a_store_tells_is_text_and_no_markup(blobs, tmp_path):
    stored = CNS(n_neighbors=12, lam=0.1).fit(blobs, out=tmp_path / "a<b>&c.zarr").result_
    write_report(stored, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "a&lt;b&gt;&amp;c.zarr" in page
    assert "a<b>" not in page


def test_a_graph_alone_has_no_rows_to_draw(result, tmp_path):
    alone = CNS(n_neighbors=12, lam=0.1).fit(graph=result.graph).result_
    assert sample_rows(alone)[0] is None
    write_report(alone, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "Only the graph was given, no rows to draw." in page


@pytest.mark.parametrize("n_features", [1, 2, 5])
def test_samples_have_two_dimensions(n_features, blobs):
    points, labels, confidence = sample_rows(CNS(n_clusters=2).fit(blobs[:200, :n_features]).result_)
    assert points.shape == (200, 2)
    assert len(labels) == len(confidence) == 200


def test_large_results_are_sampled_evenly(result):
    points, labels, _ = sample_rows(result, n_rows=100)
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
