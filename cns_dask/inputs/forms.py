"""Rows that are opened, with the options they were opened with and the form in which answers about them go back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cns_dask.array_types import ArrayLike
from cns_dask.errors import InvalidSettingError

NUMBER_KINDS = "biuf"  # NumPy's kinds of types that hold real numbers


class Form(Protocol):
    """The caller's own form of rows, in which answers about them are wrapped."""

    def wrap(self, values: ArrayLike, name: str, clusters: Sequence[int] | None, sizes: tuple[int, ...] | None) -> Any:
        """Lazy values of all rows (n,), or (n, clusters), in that form.

        `sizes` are the rows in each part of the caller's data; None if the chunks of `values` are these parts.
        """


@dataclass(frozen=True)
class ArrayForm:
    """The form of arrays: Dask arrays if they are lazy, else NumPy arrays."""

    is_lazy: bool

    def wrap(self, values: Any, *_: Any) -> Any:
        """Values of all rows."""
        return values if self.is_lazy else values.compute()


@dataclass(frozen=True)
class ReadOptions:
    """What of a source is read: see `open_data`."""

    columns: Sequence[Any] | None = None  # the caller's options
    component: str | None = None
    features: str | None = None
    #: Names of those that come from the data of a fit: they do not matter to sources that do not understand them
    inherited: frozenset[str] = frozenset()
    min_rows: int = 2  # fewer rows than this are refused

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that have a value, by name."""
        values = {"columns": self.columns, "component": self.component, "features": self.features}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def names_columns(self) -> bool:
        """Whether columns are chosen by names, not positions."""
        return self.columns is not None and not all(str(name).lstrip("-").isdigit() for name in self.columns)

    def refuse_unsupported(self, supported: tuple[str, ...], source: str) -> None:
        """Refuse options that a kind of source does not understand."""
        for name, value in self.chosen.items():
            if name not in supported and name not in self.inherited:
                raise InvalidSettingError(f"{name} has no meaning for {source}. Leave it out: it is {value!r}.")


@dataclass(frozen=True)
class Data:
    """Rows, opened."""

    X: Any  # the rows (n, d): a Dask array of float64, all features in one chunk
    form: Form  # the form in which answers go back
    in_memory: bool = False  # whether the chunks are parts of an array in this process's memory
    sparse: Any = None  # the same rows as a Dask array of sparse chunks, where they are sparse
    names: tuple[Any, ...] | None = None  # names of the features, where they have some
    labels: tuple[Any, ...] | None = None  # names that only people use: features are not found by them
    files: tuple[str, ...] = ()  # paths or URLs of the files that hold them, whose versions tell a change
    options: dict[str, Any] = field(default_factory=dict)  # the options with which they were opened
    sizes: tuple[int, ...] | None = None  # rows in each part (partition, chunk) of the caller's data; None if unknown

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are mostly zeros, stored as such: a chunk of X is filled when it is computed."""
        return self.sparse is not None

    def wrap(self, values: ArrayLike, name: str, clusters: Sequence[int] | None = None) -> Any:
        """Values of all rows, in the caller's form."""
        return self.form.wrap(values, name, clusters, self.sizes)


@dataclass(frozen=True)
class Adapter:
    """One kind of source that can be opened."""

    description: str  # what it is, for messages
    #: Whether a source is of this kind; without importing the package that it comes from
    can_open: Callable[[Any, ReadOptions], bool]
    open: Callable[[Any, ReadOptions], Data]  # open it
    options: tuple[str, ...] = ("columns",)  # names of the options that it understands
