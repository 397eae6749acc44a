import inspect
import pickle

import pytest

from cns_dask import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.usefixtures("client")  # distributed changes how exceptions are pickled
def test_errors_survive_the_way_back_from_a_worker(kind):
    copy = pickle.loads(pickle.dumps(kind("k must be below 5. Got 7.")))
    assert type(copy) is kind
    assert str(copy) == "k must be below 5. Got 7."


def test_errors_also_are_the_built_ins_that_they_specialise():
    assert issubclass(errors.InvalidDataError, ValueError)
    assert issubclass(errors.DataNotFoundError, FileNotFoundError)
    assert issubclass(errors.OutputError, OSError)
    assert issubclass(errors.SchedulerError, ConnectionError)


def test_foreign_messages_become_one_line():
    assert errors.one_line(ValueError("Mismatched dtypes\n\n+---+\n| c |\n")) == "Mismatched dtypes +---+ | c |"
