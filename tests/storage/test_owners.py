import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cns_dask.storage import store
from cns_dask.storage.owners import lives_here, parsed, this_process
from cns_dask.storage.store import TemporaryFolder


def test_this_process_lives():
    assert lives_here(json.dumps(this_process()).encode()) is True


def test_a_process_that_has_ended_is_dead():
    code = "import json; from cns_dask.storage.owners import this_process; print(json.dumps(this_process()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert lives_here(ended) is False


def test_of_other_machines_and_of_another_with_the_same_number_nothing_is_known():
    me = this_process()
    for other in ({"host": "elsewhere"}, {"boot": "another"}, {"born": me["born"] - 100}):
        assert lives_here(json.dumps({**me, **other}).encode()) is None


def test_broken_files_say_nothing():
    assert parsed(b"{") == parsed(None) == parsed(b"[1]") == {}
    assert lives_here(b"{") is None


def test_temporary_folders_of_killed_processes_are_removed_by_later_runs(tmp_path, monkeypatch):
    code = (
        "import os; from cns_dask.storage.store import TemporaryFolder; folder = TemporaryFolder(); folder.writer();"
        "print(folder.location, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert Path(killed.stdout.strip(), "result.zarr").exists()
    (tmp_path / "cns-dask-whose").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store._remove_orphans.cache_clear()
    mine, other = TemporaryFolder(), TemporaryFolder()
    expected = {"cns-dask-whose", mine.location.name, other.location.name}
    assert {path.name for path in tmp_path.iterdir()} == expected
