"""The report in a real browser."""

import pandas as pd
import pytest
from browser import chromium
from generators import mixture

from cns_dask import CNS
from cns_dask.results.report import write_report

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def result():
    rows = mixture(600, 5, n_clusters=6, spread=3.5, seed=3)
    table = pd.DataFrame(rows, columns=["<img src='http://127.0.0.1:9/x.png'>", "b" * 300, "c", "d", "e"])
    fitted = CNS(n_clusters=6).fit(table).result_
    assert len(fitted.scales) > 1
    return fitted


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(result, path)
    return path


@pytest.fixture
def shown(browser, page):
    browser.show(page)
    yield browser
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def color_counts(browser):
    """How many pixels of the map have each colour that is not rare."""
    return browser.evaluate(
        """(() => { const canvas = document.querySelector("canvas"), counts = {};
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200) {
          const key = [data[at], data[at + 1], data[at + 2]].map((value) => value >> 4).join();
          counts[key] = (counts[key] || 0) + 1; }
        return Object.keys(counts).filter((key) => counts[key] > 40); })()"""
    )


def test_the_slider_recolours_the_map(shown):
    before = color_counts(shown)
    assert len(before) >= 4
    name = "document.getElementById('level-name').textContent"
    assert shown.evaluate(name) == "6"
    shown.evaluate("document.getElementById('level').focus()")
    shown.evaluate(
        "(() => { const s = document.getElementById('level'); s.value = 0; s.dispatchEvent(new Event('input')); })()"
    )
    fewer = int(shown.evaluate(name))
    assert fewer < 6
    assert len(color_counts(shown)) < len(before)
    assert f"{fewer} clusters on the map" in shown.evaluate("document.getElementById('told').textContent")


def test_pointing_at_a_row_tells_what_it_is(shown, result):
    x, y, row = shown.evaluate(
        """(() => { const data = JSON.parse(document.getElementById("points").textContent);
        const values = (text, type) => new type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
        const canvas = document.querySelector("canvas"); canvas.scrollIntoView();
        const box = canvas.getBoundingClientRect();
        return [box.left + values(data.x, Uint16Array)[7] / 65535 * box.width,
          box.top + values(data.y, Uint16Array)[7] / 65535 * box.height, values(data.rows, Uint32Array)[7]]; })()"""
    )
    shown.move(x, y)
    told = shown.evaluate("document.querySelector('.tip').textContent")
    assert not shown.evaluate("document.querySelector('.tip').hidden")
    label, confidence = int(result.labels[row].compute()), float(result.confidence[row].compute())
    assert told == f"row {row} · cluster {label} · confidence {confidence:.2f}"
    shown.move(1, 1)
    assert shown.evaluate("document.querySelector('.tip').hidden")


def test_rows_can_be_reached_by_the_keyboard(shown):
    shown.evaluate("document.querySelector('canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        shown.press(key)
    assert shown.evaluate("document.getElementById('told').textContent").startswith("row 0 ·")
    shown.press("Escape")
    assert shown.evaluate("document.querySelector('.tip').hidden")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("3", "cluster 3: {} rows"),
        ("row 20", "row 20 ·"),
        ("row 9999", "Row 9999 is not among the points"),
        ("zzz", "Nothing"),
    ],
)
def test_clusters_and_rows_are_found(shown, result, query, told):
    shown.evaluate(f"document.getElementById('query').value = {query!r}")
    shown.evaluate("document.querySelector('#search button').click()")
    assert shown.evaluate("document.getElementById('told').textContent").startswith(told.format(result.sizes()[3]))
    lit = shown.evaluate("[...document.querySelectorAll('#legend a.on')].map((each) => each.dataset.cluster).join()")
    assert lit == ("3" if query == "3" else "")


def test_the_button_switches_between_light_and_dark(shown):
    light = shown.evaluate(BACKGROUND)
    shown.evaluate("document.getElementById('theme').click()")
    assert shown.evaluate(BACKGROUND) != light
    shown.evaluate("document.getElementById('theme').click()")
    assert shown.evaluate(BACKGROUND) == light


def test_dark_is_taken_from_the_system(browser, page):
    browser.show(page, dark=True)
    dark = browser.evaluate(BACKGROUND)
    browser.show(page)
    assert dark == "rgb(15, 18, 22)" != browser.evaluate(BACKGROUND)


@pytest.mark.parametrize("width", [400, 1200, 2000])
def test_nothing_is_wider_than_the_window(shown, page, width):
    shown.show(page, width=width)
    shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_is_readable_without_script(browser, page):
    browser.show(page, script=False)
    assert not browser.evaluate("document.querySelector('canvas')")
    assert browser.evaluate("document.getElementById('tools').hidden")
    assert browser.evaluate("getComputedStyle(document.querySelector('.dots')).display") != "none"
    assert browser.evaluate("document.querySelectorAll('.dots path').length") >= 6


def test_no_request_can_leave_the_page(browser, page):
    browser.show(page)
    blocked = browser.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.message)")
    assert "sent" not in blocked
    assert any("Content Security Policy" in str(error) for error in browser.errors)
