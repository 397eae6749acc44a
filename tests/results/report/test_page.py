import errno
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, OutputError
from cns_dask.results.history import changes_in_words
from cns_dask.results.report import write_report

VOID = {"meta", "input", "br"}
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(2)>',
    "\u202emirrored",
    "{{ 7 * 7 }}",
    "x" * 300,
]


@pytest.fixture(scope="module")
def result(blobs):
    return CNS().fit(blobs).result_


class Page(HTMLParser):
    """Fails on tags that are not closed in order, and collects what a page holds."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def written(tmp_path, result, *arguments, **options):
    write_report(result, tmp_path / "r.html", *arguments, overwrite=True, **options)
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(result, tmp_path):
    text = written(tmp_path, result)
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    targets = [value for name, value in page.attributes if name in ("src", "href", "action")]
    assert all(target.startswith(("#", "data:image/png")) for target in targets)
    policy = next(value for name, value in page.attributes if name == "content" and value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"{result.choice.n_clusters} clusters in 600 rows" in text
    for cluster, size, representative in zip(result.clusters, result.sizes(), result.representatives, strict=True):
        assert re.search(rf'<th scope="row">{cluster}</th><td>{size}</td><td>[^<]*</td><td>{representative}</td>', text)
    assert "Since the previous fit" not in text


def test_every_picture_has_a_title_and_a_description(result, tmp_path):
    text = written(tmp_path, result)
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) >= 8 + result.choice.n_clusters
    for picture in pictures:
        head = picture.split(">", 1)[0]
        names = re.search(r'aria-labelledby="(\S+) (\S+)"', head).groups()
        assert 'role="img"' in head
        assert re.search(rf'<title id="{names[0]}">[^<]+</title><desc id="{names[1]}">[^<]+</desc>', picture)
    identifiers = re.findall(r' id="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))


def test_hostile_names_are_text(blobs, tmp_path):
    table = pd.DataFrame(blobs, columns=HOSTILE)
    text = written(tmp_path, CNS(n_neighbors=12, lam=0.1).fit(table).result_, table)
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert "{{ 7 * 7 }}" in text
    assert "\u202e" not in text
    embedded = re.search(r'<script type="application/json" id="points">(.*?)</script>', text, re.DOTALL).group(1)
    assert json.loads(embedded)["shown"] == len(re.findall(r'<article class="cluster"', text))


def test_an_existing_page_is_kept(result, tmp_path):
    (tmp_path / "r.html").write_text("mine")
    with pytest.raises(OutputError, match="r.html already exists. Choose another page"):
        write_report(result, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "mine"
    assert "<svg" in written(tmp_path, result)


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
    text = written(tmp_path, merged)
    lines = changes_in_words(merged.changes)
    assert any("were merged into" in line for line in lines)
    items = "".join(f"<li>{line}</li>" for line in lines)
    assert f"Since the previous fit</h2><ul>{items}</ul>" in text


def test_what_a_store_tells_is_text_and_no_markup(blobs, tmp_path):
    stored = CNS(n_neighbors=12, lam=0.1).fit(blobs, out=tmp_path / "a<b>&c.zarr").result_
    text = written(tmp_path, stored)
    assert "a&lt;b&gt;&amp;c.zarr" in text
    assert "a<b>" not in text


def test_a_graph_alone_is_drawn_by_its_layout(result, tmp_path):
    alone = CNS(n_neighbors=12, lam=0.1).fit(graph=result.graph).result_
    text = written(tmp_path, alone)
    assert "so there are no rows to draw by their features" in text
    assert "a layout of the clusters" in text
    assert "cns-dask fit --graph GRAPH" in text
    with pytest.raises(InvalidSettingError, match="no principal axes of a graph without rows. Use coordinates='graph'"):
        written(tmp_path, alone, coordinates="principal")


def test_the_features_come_from_the_data_or_from_the_stored_rows(blobs, tmp_path):
    table = pd.DataFrame(blobs, columns=list("abcde"))
    stored = CNS(n_neighbors=12, lam=0.1).fit(table).result_
    given, alone = written(tmp_path, stored, table), written(tmp_path, stored)
    pattern = r'<bdi class="feature">(\w)</bdi>'
    assert re.findall(pattern, given) == re.findall(pattern, alone)
    assert set(re.findall(pattern, given)) == set("abcde")
    projected = CNS(n_neighbors=12, lam=0.1, max_components=3).fit(table).result_
    assert not re.findall(pattern, written(tmp_path, projected))
    assert "give the data to see the features" in written(tmp_path, projected)
    assert re.findall(pattern, written(tmp_path, projected, table))


def test_other_data_are_refused(result, blobs, tmp_path):
    with pytest.raises(InvalidDataError, match="The data have 100 rows, but 600 were clustered"):
        written(tmp_path, result, blobs[:100])
    with pytest.raises(InvalidDataError, match="100 rows and 2 columns, but 600 rows and 2 columns are needed"):
        written(tmp_path, result, coordinates=blobs[:100, :2])
    with pytest.raises(InvalidSettingError, match="columns say what of the data is read. Give the data too"):
        written(tmp_path, result, columns=["a"])


def test_warnings_come_first(blobs, tmp_path):
    X = blobs.copy()
    X[::7] = np.nan
    text = written(tmp_path, CNS(missing="skip").fit(X).result_)
    assert "86 of 600 rows have no cluster: values are missing or infinite." in text.split("<main>")[0]
    assert "--missing skip" in text


def test_another_number_of_clusters(result, tmp_path):
    text = written(tmp_path, result, n_clusters=2)
    assert "<h1>2 clusters in 600 rows</h1>" in text
    assert "2 clusters, as asked for." in text
    sizes = np.bincount(result.at(2).labels.compute()).tolist()
    for cluster, size in enumerate(sizes):
        assert f'<th scope="row">{cluster}</th><td>{size}</td>' in text


def test_a_page_does_not_depend_on_chunks(blobs, tmp_path, small_chunks):
    stored = CNS(n_neighbors=12, lam=0.1).fit(blobs, out=tmp_path / "chunks.zarr").result_
    assert stored.labels.numblocks[0] > 3
    pages = [
        written(tmp_path, stored, da.from_array(blobs, chunks=(size, 5)), coordinates="principal") for size in (600, 41)
    ]
    assert pages[0] == pages[1]


def test_a_page_does_not_depend_on_workers(blobs, tmp_path, small_chunks, cluster):
    np.save(tmp_path / "x.npy", blobs)
    with Client(cluster):
        stored = CNS(n_neighbors=12, lam=0.1).fit(str(tmp_path / "x.npy"), out=tmp_path / "workers.zarr").result_
        on_workers = written(tmp_path, stored, str(tmp_path / "x.npy"))
    assert "worker 2" in on_workers
    assert written(tmp_path, stored, str(tmp_path / "x.npy")) == on_workers


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (np.zeros((30, 2)), {}),
        (np.random.default_rng(0).random((6, 2)), {}),
        (np.random.default_rng(0).random((300, 6)), {"n_clusters": 1}),
        (np.random.default_rng(0).random((300, 3)) + 1, {"metric": "cosine", "noise": True}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_odd_data_have_a_page(rows, settings, tmp_path):
    Page(written(tmp_path, CNS(**settings).fit(rows).result_))


@pytest.mark.slow
def test_a_large_page_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    centers = 6 * rng.standard_normal((60, 35))
    rows = centers[np.arange(9000) % 60] + rng.standard_normal((9000, 35))
    table = pd.DataFrame(rows, columns=[f"{'long name ' * 8}{at}" for at in range(35)])
    stored = CNS(n_clusters=60, n_neighbors=9, lam=0.02).fit(table, sample=1500).result_
    text = written(tmp_path, stored, table)
    assert len(text.encode()) < 1e6
    assert "over an image of 9\u202f000 rows" in text


def test_a_result_of_an_older_version_has_a_page(result, blobs, tmp_path):
    CNS(n_neighbors=12, lam=0.1).fit(blobs, out=tmp_path / "old.zarr")
    file = tmp_path / "old.zarr" / "zarr.json"
    known = json.loads(file.read_text())
    del known["attributes"]["started"], known["attributes"]["memory"]["moments"]
    file.write_text(json.dumps(known))
    assert "The run over time" in written(tmp_path, open_result(tmp_path / "old.zarr"))
