import errno
import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from last_moments import last_moments, old_and_new

from cns_dask.errors import InvalidDataError, OutputError, OutputInUseError, StoreError
from cns_dask.storage.layout import FORMAT_VERSION, ArrayPlan, Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import (
    check_apart,
    check_output,
    check_space,
    find_finished,
    new_output,
    open_output,
)
from cns_dask.storage.store import open_store

SAME, PLAN = {"data": {"content": "abc"}, "settings": {"tol": 1}}, {"plan": "p"}


def written(path, **options):
    with new_output(path, Kind.RESULT, {"data": "x"}, {"plan": 1}, **options) as writer:
        writer.put("labels", np.arange(5))


def labels_at(path):
    return open_store(path, Kind.RESULT).read("labels").tolist()


def test_a_result_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(RuntimeError, match="boom"), new_output(out, Kind.RESULT, {"data": "x"}, {"plan": 1}) as writer:
        writer.put("labels", np.arange(5))
        raise RuntimeError("boom")
    assert [path.name for path in tmp_path.iterdir()] == [".r.zarr.unfinished"]
    written(out)
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]
    assert labels_at(out) == [0, 1, 2, 3, 4]


def test_an_existing_result_survives_until_the_new_one_is_complete(tmp_path):
    out = tmp_path / "r.zarr"
    written(out)
    with pytest.raises(OutputError, match=r"r\.zarr already exists\. Choose another output, or overwrite it"):
        written(out)
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, {"data": "x"}, {"plan": 1}, overwrite=True):
        raise RuntimeError
    assert labels_at(out) == [0, 1, 2, 3, 4]
    with new_output(out, Kind.RESULT, {"data": "x"}, {"plan": 1}, overwrite=True) as writer:
        writer.put("labels", np.zeros(2))
    assert labels_at(out) == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]


def test_what_appears_at_the_output_during_the_work_is_kept(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(OutputError, match="already exists"), new_output(out, Kind.RESULT, {"data": "x"}, {"plan": 1}):
        out.mkdir()
        (out / "file").write_text("keep")
    assert (out / "file").read_text() == "keep"


def test_the_old_result_comes_back_when_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    out = tmp_path / "r.zarr"
    written(out)
    rename = Path.rename

    def fail(self, target):
        if self.name == "result.zarr":
            raise OSError("no space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        written(out, overwrite=True)
    assert labels_at(out) == [0, 1, 2, 3, 4]


def test_a_full_disk_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(OutputError, match=r"needs 953674316 MiB on the disk of .*, and \d+ MiB are free"):
        check_space(Location(tmp_path), 10**15)
    check_space(Location(tmp_path), 1)


def test_a_link_is_followed(tmp_path):
    written(tmp_path / "real.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "real.zarr")
    written(tmp_path / "link.zarr", overwrite=True)
    assert (tmp_path / "link.zarr").is_symlink()
    assert labels_at(tmp_path / "real.zarr") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [300, 250])
def test_a_name_that_is_too_long_for_it_or_for_its_unfinished_folder(tmp_path, length):
    with pytest.raises(OutputError, match="cannot be written .*File name too long"):
        written(tmp_path / ("x" * length))


def test_a_prediction_never_replaces_a_result(tmp_path):
    written(tmp_path / "r.zarr")
    with pytest.raises(OutputError, match="is not a prediction of cns_dask, so it is not overwritten"):
        check_output(tmp_path / "r.zarr", Kind.PREDICTION, overwrite=True)


def test_only_our_own_results_are_overwritten(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    zarr.create_array(str(tmp_path / "data.zarr"), shape=(3,), dtype="f8")
    for name in ("precious", "data.zarr"):
        with pytest.raises(OutputError, match=f"{name} is not a result of cns_dask, so it is not overwritten"):
            check_output(tmp_path / name, Kind.RESULT, overwrite=True)


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out, scratch in (("", None), ("r.zarr", "")):
        with pytest.raises(OutputError, match=r"^The path is empty\."):
            written(out, scratch=scratch, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"folder of the output, .*missing, does not exist"):
        check_output(tmp_path / "missing" / "r.zarr", Kind.RESULT)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"folder of the output, .*file, does not exist"):
        check_output(tmp_path / "file" / "r.zarr", Kind.RESULT)
    with pytest.raises(StoreError, match="No package here opens nothing://bucket/r.zarr"):
        check_output("nothing://bucket/r.zarr", Kind.RESULT)


def test_what_is_read_is_not_written_to(tmp_path):
    data = tmp_path / "data.zarr"
    (data / "part").mkdir(parents=True)
    (tmp_path / "link").symlink_to(data)
    for out in (data, data / "part" / "r.zarr", tmp_path, tmp_path / "link", tmp_path / "link" / "r.zarr"):
        with pytest.raises(OutputError, match=r"is, lies in or holds .*data.zarr, which is read"):
            check_apart([str(data)], out)
    with pytest.raises(OutputError, match="is, lies in or holds s3://bucket/a, which is read"):
        check_apart(["s3://bucket/a"], "s3://bucket/a/r.zarr")
    with pytest.raises(OutputError, match=r"scratch folder .*part lies in .*data.zarr, which is read"):
        check_apart([str(data)], tmp_path / "r.zarr", data / "part")
    check_apart([str(data), "s3://bucket/a"], tmp_path / "data.zarr.2", tmp_path)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OutputError, match="folder of the output, .* is not writable"):
        check_output(tmp_path / "r.zarr", Kind.RESULT)


def test_unfinished_work_is_continued_with_the_same_data_and_settings_only(tmp_path):
    out = tmp_path / "r.zarr"

    def begin(fingerprint, plan=PLAN, **options):
        with new_output(out, Kind.RESULT, fingerprint, plan, **options) as writer:
            assert ("labels" in writer) == (fingerprint == SAME and plan == PLAN and not options)
            raise RuntimeError

    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN) as writer:
        writer.put("labels", np.arange(5))
        raise RuntimeError
    with pytest.raises(RuntimeError):
        begin(SAME)
    other = {"data": {"content": "abd"}, "settings": {"tol": 2}}
    with pytest.raises(OutputError, match=r"the data hold other values, .*, tol was 1, now it is 2\. .*Choose"):
        begin(other)
    with pytest.raises(OutputError, match="plan was 'p', now it is 'q'"):
        begin(SAME, {"plan": "q"})
    with pytest.raises(RuntimeError):
        begin(SAME)
    with pytest.raises(RuntimeError):
        begin(other, overwrite=True)


def test_a_broken_run_file_is_not_continued(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN):
        raise RuntimeError
    (tmp_path / ".r.zarr.unfinished" / "run.json").write_text('{"data": ')
    with (
        pytest.raises(OutputError, match="what it was made of is not recorded"),
        new_output(out, Kind.RESULT, SAME, PLAN),
    ):
        pass


def test_an_error_that_the_caller_has_to_mend_leaves_nothing_of_a_new_run(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(InvalidDataError), new_output(out, Kind.RESULT, SAME, PLAN, scratch=tmp_path):
        raise InvalidDataError("no")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN):
        raise RuntimeError
    with pytest.raises(InvalidDataError), new_output(out, Kind.RESULT, SAME, PLAN):  # what was there stays
        raise InvalidDataError("no")
    assert (tmp_path / ".r.zarr.unfinished" / "run.json").exists()


def test_scratch_elsewhere_is_removed_on_success_and_kept_on_failure(tmp_path):
    (tmp_path / "fast").mkdir()
    out, part = tmp_path / "r.zarr", ArrayPlan("a", (3,), (3,), scratch=True)
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN, scratch=tmp_path / "fast") as writer:
        writer.create(part)[:] = 1
        raise RuntimeError
    (kept,) = (tmp_path / "fast").iterdir()
    assert kept.name.startswith("r.zarr-")
    assert (kept / "a" / "c" / "0").exists()
    with new_output(out, Kind.RESULT, SAME, PLAN, scratch=tmp_path / "fast") as writer:
        assert writer.create(part)[:].tolist() == [1, 1, 1]
    assert list((tmp_path / "fast").iterdir()) == []
    with (
        pytest.raises(OutputError, match=r"scratch folder .*slow does not exist"),
        new_output(tmp_path / "s.zarr", Kind.RESULT, SAME, PLAN, scratch=tmp_path / "slow"),
    ):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match=r"scratch folder .*file is not a folder"),
        new_output(tmp_path / "s.zarr", Kind.RESULT, SAME, PLAN, scratch=tmp_path / "file"),
    ):
        pass


def test_what_a_run_left_that_was_killed_after_its_end_is_swept(tmp_path):
    out, work = tmp_path / "r.zarr", tmp_path / ".r.zarr.unfinished"
    with open_output(out, Kind.RESULT, SAME, PLAN):
        pass
    work.mkdir()
    saved = {"folder": "abc", "work": {**SAME, **PLAN, "format_version": FORMAT_VERSION}}
    (work / "run.json").write_text(json.dumps(saved))
    (work / "abc").mkdir()
    told = []
    with open_output(out, Kind.RESULT, SAME, PLAN, tell=told.append) as output:
        assert output.writer is None
    assert told == [f"{out} is finished already"]
    assert not work.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "case", ["replace", pytest.param("first", marks=pytest.mark.slow), pytest.param("other", marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_at_any_moment_of_its_end_is_run_again(tmp_path, case):
    """The old result is there until the new one is, but for the moment between two renames; then it comes back."""
    killed, (old, new, last) = last_moments(tmp_path, case), old_and_new(case)
    assert len(killed) > 25
    before = [each["between"] for each in killed if each["between"] != new]
    n_between_renames = int(old is not None)
    n_before = len(before) - n_between_renames
    assert n_before > 5
    assert before == [old] * n_before + [None] * n_between_renames
    for each in killed:
        assert (each["error"], each["after"], sorted(each["left"])) == ("", last, ["r.zarr", "scratch"]), each


def test_an_old_result_that_was_moved_aside_comes_back(tmp_path):
    out, unfinished = tmp_path / "r.zarr", tmp_path / ".r.zarr.unfinished"
    written(out)
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN, overwrite=True) as writer:
        writer.records.write("piece.json", b"done")
        raise RuntimeError
    (folder,) = (path for path in unfinished.iterdir() if path.is_dir())
    out.rename(folder / "replaced")  # and killed
    with pytest.raises(OutputError, match="already exists"), new_output(out, Kind.RESULT, {}, PLAN):
        pass
    assert labels_at(out) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scratch", ["/sys/kernel", "/proc/1"])
def test_scratch_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path, scratch):
    if not Path(scratch).is_dir():
        pytest.skip("needs a folder that nobody may write to")
    with (
        pytest.raises(OutputError, match=rf"arrays cannot be written to {scratch}.*another scratch folder"),
        new_output(tmp_path / "r.zarr", Kind.RESULT, SAME, PLAN, scratch=scratch),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_another_work_has_another_folder(tmp_path):
    """Tasks that still run for one that was given up cannot write into it."""
    out, work = tmp_path / "r.zarr", tmp_path / ".r.zarr.unfinished"

    def folder(fingerprint, **options):
        with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, fingerprint, PLAN, **options) as writer:
            raise RuntimeError
        return writer.location

    first = folder(SAME)
    assert folder(SAME) == first
    assert folder({"data": 7}, overwrite=True) != first
    assert len([path for path in work.iterdir() if path.is_dir()]) == 1


def test_a_folder_that_a_run_file_names_is_one_of_ours(tmp_path):
    out, work = tmp_path / "r.zarr", tmp_path / ".r.zarr.unfinished"
    with pytest.raises(RuntimeError), new_output(out, Kind.RESULT, SAME, PLAN):
        raise RuntimeError
    (work / "run.json").write_text(json.dumps({"folder": "../../precious", "work": {**SAME, **PLAN}}))
    with (
        pytest.raises(OutputError, match="There is unfinished work of other data or settings"),
        new_output(out, Kind.RESULT, SAME, PLAN),
    ):
        pass


def test_work_is_kept_when_the_output_is_lost_to_another_run(tmp_path):
    out, work = tmp_path / "r.zarr", tmp_path / ".r.zarr.unfinished"
    with pytest.raises(OutputInUseError, match="lost its lock"), new_output(out, Kind.RESULT, SAME, PLAN) as writer:
        writer.put("labels", np.arange(5))
        (work / "lock-9").write_text("{}")
    assert (work / "run.json").exists()
    assert (work / "lock-9").exists()
    assert (Path(writer.location) / "labels" / "zarr.json").exists()


def test_what_is_finished_is_told_from_what_is_not(tmp_path):
    out = tmp_path / "r.zarr"
    assert find_finished(out, Kind.RESULT, SAME) is None
    with new_output(out, Kind.RESULT, SAME, PLAN):
        assert find_finished(out, Kind.RESULT, SAME) is None
    assert find_finished(out, Kind.RESULT, SAME).location == Location(out)
    assert find_finished(out, Kind.PREDICTION, SAME) is None
    with pytest.raises(OutputError, match="other data or settings: .*data was None, now it is 5"):
        find_finished(out, Kind.RESULT, {**SAME, "data": 5})


def test_an_output_is_opened_to_be_filled_and_then_as_it_is(tmp_path):
    out = tmp_path / "r.zarr"
    with open_output(out, Kind.RESULT, SAME, PLAN) as output:
        assert output.store.location == Location(out)
        assert output.writer.location != Location(out)
        output.writer.put("labels", [7, 8])
    assert output.store.read("labels").tolist() == [7, 8]
    assert output.store.attributes["fingerprint"] == {**SAME, "format_version": FORMAT_VERSION}
    with open_output(out, Kind.RESULT, SAME, PLAN) as again:
        assert again.writer is None
        assert again.store.read("labels").tolist() == [7, 8]
    with open_output(out, Kind.RESULT, SAME, PLAN, overwrite=True) as replaced:
        replaced.writer.put("labels", [9])
    assert labels_at(out) == [9]


def test_an_output_without_a_path_is_temporary():
    with open_output(None, Kind.RESULT, {}, {}) as output:
        assert output.writer.records is None
        output.writer.put("labels", [7, 8])
    folder = Path(output.store.location)
    assert output.store.read("labels").tolist() == [7, 8]
    del output
    gc.collect()
    assert not folder.exists()


def test_a_disk_that_gets_full_is_told_with_what_to_do_and_keeps_what_was_done(tmp_path):
    out = tmp_path / "r.zarr"
    with (
        pytest.raises(OutputError, match=r"disk is full \(No space left on device\) while .* on another disk") as told,
        new_output(out, Kind.RESULT, SAME, PLAN),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "--scratch" not in str(told.value)  # which a prediction does not have
    assert (tmp_path / ".r.zarr.unfinished" / "run.json").exists()
