"""The rules that keep the package readable."""

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import cns_dask

PACKAGE = Path(cns_dask.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
#: Foreign package -> the modules that may import it.
DOORS = {
    "fsspec": ["storage/locations"],
    "tenacity": ["storage/locations"],
    "zarr": ["storage/arrays"],
    "distributed": ["execution/cluster", "execution/compute"],
    "dask_ml": ["inputs/preprocess"],
    "pandas": ["inputs/tables", "inputs/table_forms", "inputs/csv_files"],
    "xarray": ["inputs/xarrays"],
    "anndata": ["inputs/anndatas"],
    "pynndescent": ["neighbors/descent"],
    "llvmlite": ["smoothing/row_kernel"],
    "jinja2": ["results/report/page"],
    "matplotlib": ["results/plots"],
    "typer": ["cli/app", "cli/commands", "cli/explain", "cli/options", "cli/show", "cli/support"],
    "yaml": ["config"],
}
#: Modules whose tests have another name, because they test more than the module.
TESTED_BY = {
    "array_types": "test_design",  # names of types only
    "cli/app": "test_cli",
    "cli/commands": "test_cli",
    "cli/explain": "test_explain",
    "cli/options": "test_cli",
    "cli/show": "test_cli",
    "cli/support": "test_cli",
    "demo": "test_cli",
}


def imported(path):
    """Foreign packages that a module imports, function bodies included."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_imports_follow_the_layers():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_each_foreign_package_has_its_door():
    wrong = [
        (str(path), package)
        for path in MODULES
        for package in imported(path)
        if str(path.with_suffix("")) not in DOORS.get(package, [str(path.with_suffix(""))])
    ]
    assert wrong == []


def test_every_module_has_a_test_file_of_its_own():
    names = [str(path.with_suffix("")) for path in MODULES]
    expected = {
        name: TESTS
        / (f"{TESTED_BY[name]}.py" if name in TESTED_BY else Path(name).with_name(f"test_{Path(name).name}.py"))
        for name in names
    }
    assert [name for name, file in expected.items() if not file.is_file()] == []


def test_every_layer_says_what_lives_there_and_what_it_must_not_know():
    for layer in ("inputs", "neighbors", "smoothing", "results", "storage", "execution"):
        assert "must not know" in (PACKAGE / layer / "__init__.py").read_text(encoding="utf-8")


def test_only_public_names_are_shown_and_nothing_heavy_is_imported():
    code = (
        "import sys, cns_dask\n"
        "assert dir(cns_dask) == sorted([*cns_dask.__all__, '__version__']), dir(cns_dask)\n"
        "heavy = {'dask.array', 'sklearn', 'scipy.stats', 'numba', 'zarr', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "try: cns_dask.nothing\n"
        "except AttributeError: pass\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def public():
    """Every public name, and the methods of those that are classes."""
    for name in cns_dask.__all__:
        value = getattr(cns_dask, name)
        yield name, value
        if inspect.isclass(value):
            for method, function in vars(value).items():
                if not method.startswith("_") and isinstance(function, FunctionType | classmethod):
                    yield f"{name}.{method}", function


@pytest.mark.parametrize(("name", "value"), list(public()))
def test_every_public_name_has_an_example_that_runs(name, value):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    assert examples
    assert not any(example.options.get(doctest.SKIP) for example in examples)


@pytest.mark.slow  # also: a newer release of either tool may ask for more
@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_lint_and_types(command):
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_fit_does_not_import_pynndescent():
    code = (
        "import sys, numpy as np; from cns_dask import CNS; CNS().fit(np.random.default_rng(0).random((60, 2)));"
        "assert 'pynndescent' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
