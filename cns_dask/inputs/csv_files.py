"""CSV files with a header: cut into blocks of lines, each of which is read, and checked, by a task.

Columns are matched by name, so files may have them in different orders. What pandas would guess is refused: lines with
more fields than the header, whose first fields it takes for an index, and a first line of numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from cns_dask.errors import InvalidDataError, one_line
from cns_dask.storage.locations import describe_file, read_lines

BLOCK_BYTES = 32 * 2**20  # of a file that is not compressed
SAMPLE_BYTES, SAMPLE_ROWS = 256 * 2**10, 10  # that tell which columns hold numbers
HEADER_BYTES = 4096  # after which the line that holds it is read to its end
OTHER_SEPARATORS = ";\t|"


@dataclass(frozen=True)
class Block:
    """Some lines of a file."""

    file: str
    version: str  # changes with the content of the file
    start: int = 0
    length: int | None = None  # in bytes; None for the whole file


def read_csv(files: Sequence[str]) -> Any:
    """A lazy table of CSV files (paths or URLs), with a partition for every block."""
    import dask.dataframe as dd

    head = _first_rows(files)
    numbers = head.select_dtypes(["number", "bool"]).columns
    blocks = [block for file in files for block in blocks_of(file)]
    meta = head.iloc[:0].astype(dict.fromkeys(numbers, np.float64))
    return dd.from_map(read_block, blocks, names=tuple(head), numbers=frozenset(numbers), meta=meta, label="read-csv")


def blocks_of(file: str) -> list[Block]:
    """The blocks of a file: one if it is small or compressed."""
    size, version = describe_file(file)
    if not file.endswith(".csv") or size is None or size <= BLOCK_BYTES:
        return [Block(file, version)]
    return [Block(file, version, start, BLOCK_BYTES) for start in range(0, size, BLOCK_BYTES)]


def read_block(
    block: Block, columns: Sequence[str] | None = None, *, names: tuple[str, ...], numbers: frozenset[str]
) -> Any:
    """The lines of a block as a pandas DataFrame of these columns (all if None), with `numbers` as float64."""
    import pandas as pd

    text = _text_of(block)
    if block.start:
        first_lines = read_lines(block.file, 0, HEADER_BYTES).splitlines(keepends=True)
        text = next(line for line in first_lines if line.strip()) + text  # with the header
    frame = _parse(text, block)
    different = [f"it lacks {name}" for name in names if name not in frame]
    different += [f"it has {name} besides" for name in frame if name not in names]
    if different:
        raise InvalidDataError(f"{block.file} has other columns than the first file: {different[0]}.")
    wanted = {name: frame[name] for name in (names if columns is None else columns)}
    values = {name: _as_numbers(each, block.file) if name in numbers else each for name, each in wanted.items()}
    return pd.DataFrame(values, index=frame.index)


def _text_of(block: Block) -> bytes:
    try:
        return read_lines(block.file, block.start, block.length)
    except Exception as error:
        if block.file.endswith(".csv"):
            raise
        raise InvalidDataError(f"{block.file} cannot be decompressed ({one_line(error)}). Write it again.") from error


def _exact_numbers(version: str) -> dict[str, str]:
    """Options of a version of pandas for numbers that are read to the last bit: from 3.1 on they always are.

    Examples
    --------
    >>> _exact_numbers("3.0.2"), _exact_numbers("3.1.0")
    ({'float_precision': 'round_trip'}, {})
    """
    major, minor = map(int, version.split(".")[:2])
    return {"float_precision": "round_trip"} if (major, minor) < (3, 1) else {}


def _parse(text: bytes, block: Block, **options: Any) -> Any:
    import pandas as pd

    try:
        frame = pd.read_csv(BytesIO(text), low_memory=False, **_exact_numbers(pd.__version__), **options)
    except ValueError as error:  # of pandas' parser, and of text that is not UTF-8
        what = one_line(error).removeprefix("Error tokenizing data. C error: ")
        counted = f", as counted from byte {block.start}" if block.start else ""
        raise InvalidDataError(
            f"{block.file} cannot be read as a table by read_csv ({what}{counted}). Every line must have the fields of "
            "the header, separated by commas, in UTF-8."
        ) from error
    if len(frame) and not isinstance(frame.index, pd.RangeIndex):
        raise InvalidDataError(
            f"Lines of {block.file} have more fields than its header, which has {frame.shape[1]}. Write it with a "
            "comma as separator, also in the header and not at the end of lines, and a point as decimal sign."
        )
    return frame


def _as_numbers(column: Any, file: str) -> Any:
    import pandas as pd

    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as error:
        wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
        raise InvalidDataError(
            f"Column {column.name} of {file} holds {wrong.iloc[0]!r}, which is not a number. Correct it, leave the "
            "field empty, or choose other columns with columns=[...]."
        ) from error


def _first_rows(files: Sequence[str]) -> Any:
    """The first rows of the first file that has some."""
    for file in files:
        block = Block(file, "", length=SAMPLE_BYTES)
        text = _text_of(block)
        head = _parse(text, block, nrows=SAMPLE_ROWS)
        _check_header(text, head, block)
        if len(head):
            return head
    raise InvalidDataError(f"{files[0]} has a header, but no rows.")


def _check_header(text: bytes, head: Any, block: Block) -> None:
    fields = _parse(text, block, nrows=1, header=None, dtype=str, keep_default_na=False).iloc[0].tolist()
    by_number = [str(position) for position in range(len(fields))]  # names that pandas gives by itself
    if all(map(_is_number, fields)) and (len(fields) < 3 or fields != by_number):
        raise InvalidDataError(
            f"{block.file} has no header: its first line holds numbers only. Add a line with the names of the columns."
        )
    separators = [sign for sign in OTHER_SEPARATORS if sign in fields[0]]
    if len(fields) == 1 and separators and len(head) and head.dtypes.iloc[0].kind == "O":
        raise InvalidDataError(
            f"The fields of {block.file} are separated by {separators[0]!r}. Write it with a comma as separator, and a "
            "point as decimal sign."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
