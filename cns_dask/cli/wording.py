"""Messages of the package speak of parameters in Python; here they come to speak of options of the command line."""

import re
from collections.abc import Callable
from dataclasses import fields

from cns_dask.cli.options import DataOptions
from cns_dask.settings import Settings

#: Parameters that are options, besides settings and what of the data is read; and those with another name here.
OTHERS = ("sample", "check_sample", "previous", "graph", "scratch", "overwrite", "out", "measure", "threads", "memory")
RENAMED = {
    "n_rows": "--rows",
    "n_features": "--columns",
    "memory_bytes": "--memory",
    "scheduler_file": "--scheduler-file",
}
NAMES = (*(each.name for each in fields(Settings)), *(each.name for each in fields(DataOptions)), *OTHERS)

#: Python -> command line, in this order.
PHRASES = (
    ("columns=[...]", "--columns NAME,..."),
    ("or overwrite it", "or replace it with --overwrite"),
    ("another output", "another --out"),
    ("another page", "another --out"),
    ("Give the output a name", "Give --out a name"),
    ("Give another scratch folder", "Give another folder with --scratch"),
    ("in a scratch folder", "in a folder that --scratch names"),
    ("scheduler, scheduler file and workers", "--scheduler, --scheduler-file and --workers"),
    ("Give workers, or a scheduler, too", "Give --workers or --scheduler too"),
    ("with columns.", "with --columns."),
    ("Choose a component:", "Choose one with --component:"),
    ("as component;", "as --component;"),
)
_ANY_NAME = "|".join(sorted((*NAMES, *RENAMED), key=len, reverse=True))
#: A name with a value: missing='skip', scale=False
_WITH_VALUE = re.compile(rf"(?<![\w/.'\"=-])({_ANY_NAME})=('[^']*'|\"[^\"]*\"|[\w.+-]*\w)")
#: A name that can be nothing else, because words have no underscores
_UNDERSCORED = "|".join(name for name in _ANY_NAME.split("|") if "_" in name)
_WITH_UNDERSCORE = re.compile(rf"(?<![\w/.'\"-])({_UNDERSCORED})(?![\w/'\"=-]|\.\w)")
#: A name that is the subject of a sentence, or is to be left out
_AS_SUBJECT = re.compile(rf"(^|[.:,] )({_ANY_NAME})(?= (?:must|has no meaning|names the|of an array must|was|needs)\b)")
_LEFT_OUT = re.compile(rf"\b([Ll]eave) ({_ANY_NAME})(?= out\b)")


def in_options(message: str) -> str:
    """The message, with options where it speaks of parameters.

    Examples
    --------
    >>> in_options("Remove or fill them; a fit skips them with missing='skip'.")
    'Remove or fill them; a fit skips them with --missing skip.'
    >>> in_options("tol must be a number from 1e-13 to 0.1. Got 2.0.")
    '--tol must be a number from 1e-13 to 0.1. Got 2.0.'
    """
    for python, line in PHRASES:
        message = message.replace(python, line)
    rules: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
        (_WITH_VALUE, lambda found: _option_with_value(found[1], found[2])),
        (_AS_SUBJECT, lambda found: found[1] + _option(found[2])),
        (_LEFT_OUT, lambda found: f"{found[1]} {_option(found[2])}"),
        (_WITH_UNDERSCORE, lambda found: _option(found[1])),
    )
    for pattern, replacement in rules:
        message = pattern.sub(replacement, message)
    return message


def _option(name: str) -> str:
    return RENAMED.get(name, f"--{name.replace('_', '-')}")


def _option_with_value(name: str, value: str) -> str:
    option = _option(name)
    if value in ("True", "False"):
        return option if value == "True" else f"--no-{option[2:]}"
    if value == "None":
        return f"{option} 0" if name == "max_components" else f"no {option}"
    return f"{option} {value.strip(chr(39) + chr(34))}"
