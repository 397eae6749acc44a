import dask.array as da
import numpy as np
import pytest

from cns_dask.errors import InvalidSettingError
from cns_dask.inputs.forms import ArrayForm, Data, ReadOptions


def test_lazy_arrays_give_lazy_answers_and_others_give_arrays():
    values = da.arange(3, chunks=2)
    assert ArrayForm(is_lazy=True).wrap(values, "any", None, None) is values
    answer = ArrayForm(is_lazy=False).wrap(values, "any", None, None)
    assert type(answer) is np.ndarray
    assert answer.tolist() == [0, 1, 2]


def test_options_without_a_value_are_not_chosen():
    assert ReadOptions().chosen == {}
    options = ReadOptions(columns=[], component="", features=None, min_rows=7)
    assert options.chosen == {"columns": [], "component": ""}


@pytest.mark.parametrize(
    ("columns", "are_names"),
    [(None, False), ([], False), ([0, 2], False), (["0", "-1"], False), (["a", "b"], True), (["0", "b"], True)],
)
def test_columns_are_names_unless_all_are_numbers(columns, are_names):
    assert ReadOptions(columns).names_columns is are_names


def test_options_that_a_source_does_not_understand_are_refused_unless_they_are_defaults():
    options = ReadOptions(columns=["a"], features="time")
    options.refuse_unsupported(("columns", "features"), "xarray")
    with pytest.raises(InvalidSettingError, match="features has no meaning for a table. Leave it out: it is 'time'."):
        options.refuse_unsupported(("columns",), "a table")
    inherited = ReadOptions(columns=["a"], features="time", inherited=frozenset({"features"}))
    inherited.refuse_unsupported(("columns",), "a table")
    with pytest.raises(InvalidSettingError, match=r"columns has no meaning for .*\['a'\]"):
        inherited.refuse_unsupported((), "a table")


def test_data_wrap_values_in_their_form_and_tell_it_the_sizes():
    calls = []

    class Recorder:
        def wrap(self, *arguments):
            calls.append(arguments)
            return "wrapped"

    data = Data(da.ones((3, 2)), Recorder(), sizes=(2, 1))
    assert data.wrap("values", "labels") == "wrapped"
    assert data.wrap("values", "memberships", [0, 4]) == "wrapped"
    assert calls == [("values", "labels", None, (2, 1)), ("values", "memberships", [0, 4], (2, 1))]
