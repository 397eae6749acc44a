import numpy as np
import pytest

from cns_dask.storage.layout import LAYOUT, OF_CLUSTERED_ROWS, UNCOMPRESSED, ArrayPlan, Kind


def test_every_array_names_its_dimensions_and_meaning():
    for spec in LAYOUT.values():
        assert spec.dims
        assert spec.meaning
        assert len(set(spec.dims)) == len(spec.dims)


@pytest.mark.parametrize("name", ["cluster", "k", "lam", "n_clusters"])
def test_coordinates_have_one_dimension_of_their_own_name(name):
    assert LAYOUT[name].dims == (name,)


def test_arrays_of_clustered_rows_begin_with_the_dimension_that_is_replaced():
    assert {LAYOUT[name].dims[0] for name in OF_CLUSTERED_ROWS} == {"row"}
    assert set(UNCOMPRESSED) <= set(LAYOUT)


def test_types_are_plain_numbers_that_have_a_value_for_a_lost_chunk():
    assert {np.dtype(spec.dtype).kind for spec in LAYOUT.values()} == {"f", "i"}


@pytest.mark.parametrize(
    ("array", "nbytes"),
    [
        (ArrayPlan("labels", (10,), (5,)), 80),  # int64 of the layout
        (ArrayPlan("cells/centers", (3, 4), (3, 4)), 48),  # float32 of the layout
        (ArrayPlan("graph/indices", (10, 4), (5, 4), "uint32"), 160),  # a smaller type than usual
        (ArrayPlan("squares", (7,), (7,), scratch=True), 56),  # float64 where nothing is said
        (ArrayPlan("sent", (7, 3), (7, 3), "int8", scratch=True), 21),
        (ArrayPlan("nothing", (0, 3), (1, 3), scratch=True), 0),
    ],
)
def test_the_size_of_an_array_before_it_is_made(array, nbytes):
    assert array.nbytes == nbytes


def test_kinds_are_stored_as_the_words_that_errors_use():
    assert [str(kind) for kind in Kind] == ["result of cns_dask", "prediction of cns_dask", "graph of cns_dask"]
    assert Kind("graph of cns_dask") is Kind.GRAPH
