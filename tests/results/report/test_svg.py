import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.results.colors import PALETTE
from cns_dask.results.report.svg import (
    clean,
    compact,
    contrasting,
    cut,
    number,
    percent,
    seconds,
    svg,
    tag,
    text,
    ticks,
)


def test_text_and_attributes_are_escaped():
    hostile = '"><script>alert(1)</script>'
    made = str(svg(10, 10, hostile, hostile, text(hostile, 1, 2), tag("rect", data_name=hostile)))
    assert "<script" not in made
    assert re.findall(r"<(\w+)", made) == ["svg", "title", "desc", "text", "rect"]


def test_what_turns_text_around_is_replaced_and_the_rest_kept():
    assert clean("a\u202eb\x00c\u2066") == "a\ufffdb\ufffdc\ufffd"
    for name in ("\u0645\u0631\u062d\u0628\u0627 \u0628", "\u0645\u06cc\u200c\u062e", "naïve, 3\u202f000"):
        assert clean(name) == name


@given(st.text(max_size=200))
def test_cut_names_are_short_and_begin_alike(name):
    assert len(cut(name)) <= 26
    assert name.startswith(cut(name).removesuffix("…"))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_lie_inside_and_are_few(low, width):
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * width - 1e-9 <= value <= low + width * (1 + 1e-6) + 1e-9 for value in found)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (number(-1234.0), "\u22121\u202f234"),
        (number(float("nan")), "\u2013"),
        (number(12345.678), "12\u202f346"),
        (compact(999_999), "1\u202f000k"),
        (percent(0), "0\u202f%"),
        (percent(0.004), "under 1\u202f%"),
        (seconds(0), "0\u202fs"),
        (seconds(120), "2\u202fmin"),
        (seconds(7200), "2\u202fh"),
    ],
)
def test_numbers_for_people(shown, words):
    assert shown == words


def test_names_can_be_read_on_every_colour():
    def luminance(color):
        values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for color in PALETTE:
        low, high = sorted((luminance(color), luminance(contrasting(color))))
        assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG AA
