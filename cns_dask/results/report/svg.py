"""Elements of SVG and HTML as escaped text, and what all drawings share: frames, ticks and numbers for people."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup, escape

NAME_LENGTH = 26  # of a name in a drawing; longer ones are cut, and whole in the table beside it
MINUS = "\u2212"
JOINERS = "\u200c\u200d"  # invisible, but part of words


def tag(name: str, *content: Any, **attributes: Any) -> Markup:
    """An element; text is escaped, underscores of attributes become hyphens, and those that are None are left out.

    Examples
    --------
    >>> tag("text", "a < b", x=3.0, text_anchor="end", class_="small")
    Markup('<text x="3" text-anchor="end" class="small">a &lt; b</text>')
    """
    known = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    listed = Markup("").join(Markup(' {}="{}"').format(key, short(value)) for key, value in known.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, listed, Markup("").join(map(escape, content)))


def short(value: Any) -> str:
    """A number with as many digits as a drawing needs; anything else as text."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def svg(
    width: float, height: float, title: str, description: str, *content: Any, class_: str = "chart", **more: Any
) -> Markup:
    """A picture with a title and a description for those who cannot see it."""
    mark = hashlib.sha256(f"{title} {description}".encode()).hexdigest()[:8]
    return tag(
        "svg",
        tag("title", title, id=f"t{mark}"),
        tag("desc", description, id=f"d{mark}"),
        *content,
        viewBox=f"0 0 {short(float(width))} {short(float(height))}",
        width=float(width),
        height=float(height),
        role="img",
        aria_labelledby=f"t{mark} d{mark}",
        class_=class_,
        **more,
    )


def text(content: Any, x: float, y: float, class_: str = "", anchor: str = "start", **more: Any) -> Markup:
    """Some words in a picture."""
    return tag("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid", **more: Any) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_, **more)


def rectangle(x: float, y: float, width: float, height: float, *content: Any, **more: Any) -> Markup:
    """A rectangle; its content is a title."""
    return tag("rect", *content, x=float(x), y=float(y), width=float(width), height=float(height), **more)


def clean(name: Any) -> str:
    r"""A name without characters that would turn or break the text around it.

    Examples
    --------
    >>> clean("a\u202eb")
    'a�b'
    """
    return "".join(each if _is_harmless(each) else "\ufffd" for each in str(name))


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


def cut(name: Any, length: int = NAME_LENGTH) -> str:
    """A name that is not too long.

    Examples
    --------
    >>> cut("petal length in centimetres of all", 12)
    'petal lengt…'
    """
    name = str(name)
    return name if len(name) <= length else f"{name[: length - 1]}…"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about as many as asked for.

    Examples
    --------
    >>> ticks(0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / max(1, count)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * min((factor for factor in (1, 2, 5, 10) if factor * unit >= rough), default=10)
    return [round(at * step, 12) for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    r"""A number for people: thousands apart, few digits.

    Examples
    --------
    >>> number(1234567), number(0.04567), number(3)
    ('1\u202f234\u202f567', '0.0457', '3')
    """
    if math.isnan(value):
        return "\u2013"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f").replace("-", MINUS)
    return f"{value:.3g}".replace("-", MINUS) if abs(value) < 999.5 else number(round(value))


def compact(value: float) -> str:
    """A number in little room.

    Examples
    --------
    >>> compact(2_500_000), compact(40_000), compact(900)
    ('2.5M', '40k', '900')
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10_000 and abs(value) >= unit:
            return f"{number(value / unit)}{letter}"
    return number(value)


def percent(share: float) -> str:
    r"""A share for people: never 0 or 100 % if it is not.

    Examples
    --------
    >>> percent(0.123), percent(0.0004), percent(0.9999), percent(1)
    ('12\u202f%', 'under 1\u202f%', 'over 99\u202f%', '100\u202f%')
    """
    if 0 < share < 0.005:
        return "under 1\u202f%"
    if 0.995 < share < 1:
        return "over 99\u202f%"
    return f"{100 * share:.0f}\u202f%"


def seconds(value: float) -> str:
    r"""A duration for people.

    Examples
    --------
    >>> seconds(0.034), seconds(12.3), seconds(754), seconds(8000)
    ('0.034\u202fs', '12\u202fs', '12\u202fmin 34\u202fs', '2\u202fh 13\u202fmin')
    """
    if value < 10:
        return f"{value:.2g}\u202fs" if value >= 0.01 or not value else f"{value:.2f}\u202fs"
    if value < 100:
        return f"{value:.0f}\u202fs"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes}\u202fmin" + (f" {rest}\u202fs" if rest else "")
    return f"{minutes // 60}\u202fh" + (f" {minutes % 60}\u202fmin" if minutes % 60 else "")


def size_in_bytes(value: float) -> str:
    r"""Bytes for people.

    Examples
    --------
    >>> size_in_bytes(3 * 2**30)
    '3.0\u202fGiB'
    """
    return f"{value / 2**30:.1f}\u202fGiB" if value >= 2**30 else f"{value / 2**20:.0f}\u202fMiB"


def frame(
    box: tuple[float, float, float, float],
    x: tuple[Iterable[float], Any, str],
    y: tuple[Iterable[float], Any, str],
) -> Markup:
    """Ticks and names of both axes: left, top, right and bottom, then values, their position and the axis' name."""
    left, top, right, bottom = box
    parts: list[Markup] = []
    for value in y[0]:
        parts += [
            line(left, y[1](value), right, y[1](value)),
            text(compact(value), left - 6, y[1](value) + 4, "tick", "end"),
        ]
    for value in x[0]:
        parts.append(text(number(value), x[1](value), bottom + 16, "tick", "middle"))
    parts += [
        line(left, bottom, right, bottom, "axis"),
        text(x[2], (left + right) / 2, bottom + 34, "name", "middle"),
        text(y[2], left, top - 8, "name"),
    ]
    return Markup("").join(parts)


def contrasting(color: str) -> str:
    """Black or white: what is read better on a colour.

    Examples
    --------
    >>> contrasting("#ffffff"), contrasting("#0072b2")
    ('#000000', '#ffffff')
    """
    values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"
