"""What a release needs besides the code: workflows that are valid, one version, and types that users can check with."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GITHUB = ROOT / ".github"
SCHEMAS = {
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "vendor.github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "idea.yml")],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
}


def run(program, *arguments, **options):
    command = [Path(sys.executable).with_name(program), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_github_follow_their_schema(schema):
    files = SCHEMAS[schema]
    assert files
    checked = run("check-jsonschema", "--builtin-schema", schema, *files)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_workflow_that_is_wrong_is_found(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("name: wrong\non: push\njobs: {one: {runs-on: ubuntu-latest, stepz: []}}\n", encoding="utf-8")
    assert run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", wrong).returncode != 0


@pytest.mark.parametrize("script", sorted((ROOT / ".ci").iterdir()), ids=lambda path: path.name)
def test_scripts_run_and_are_sound(script):
    assert os.access(script, os.X_OK)
    checked = run("shellcheck", script)
    assert checked.returncode == 0, checked.stdout


def test_workflows_call_scripts_that_exist():
    called = [
        word
        for path in SCHEMAS["vendor.github-workflows"]
        for line in path.read_text(encoding="utf-8").splitlines()
        for word in line.split()
        if word.startswith(".ci/")
    ]
    assert sorted(set(called)) == sorted(f".ci/{path.name}" for path in (ROOT / ".ci").iterdir())


def test_every_python_that_is_admitted_is_tested():
    tested = [line.rpartition(":: ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert tested == ["3.11", "3.12", "3.13", "3.14"]
    assert f">={tested[0]}" == PROJECT["requires-python"]
    workflow = (GITHUB / "workflows" / "tests.yml").read_text(encoding="utf-8")
    assert f"python: {tested}".replace("'", '"') in workflow


def test_the_version_is_in_one_place_and_has_a_section_in_the_changelog():
    version = PROJECT["version"]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert headings[0].split()[1] == version
    code = [path for path in (ROOT / "cns_dask").rglob("*.py") if f'"{version}"' in path.read_text(encoding="utf-8")]
    assert code == []


@pytest.mark.slow
def test_a_user_can_check_types_with_ours(tmp_path):
    (tmp_path / "good.py").write_text(
        "from cns_dask import CNS, Result, open_result\n"
        "model: CNS = CNS(n_clusters=3)\n"
        'result: Result = open_result("clusters.zarr")\n'
        "count: int = result.choice.n_clusters\n",
        encoding="utf-8",
    )
    (tmp_path / "wrong.py").write_text(
        'from cns_dask import open_result\ncount: str = open_result("a.zarr").choice.n_clusters\n', encoding="utf-8"
    )
    options = {"cwd": tmp_path}
    good = run("mypy", "--strict", "--follow-imports=silent", "good.py", **options)
    assert good.returncode == 0, good.stdout
    wrong = run("mypy", "--strict", "--follow-imports=silent", "wrong.py", **options)
    assert 'variable has type "str"' in wrong.stdout
