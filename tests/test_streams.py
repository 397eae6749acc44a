import io

from cns_dask.streams import ForgivingStream


def test_a_forgiving_stream_is_as_good_as_the_one_behind_it():
    behind = io.StringIO()
    stream = ForgivingStream(behind)
    assert stream.write("a line") == 6
    assert (stream.getvalue(), stream.isatty()) == ("a line", False)
