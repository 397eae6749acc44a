"""The rules that keep the package readable, held by walking its imports."""

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
#: A module imports only from modules to its left.
ORDER = (
    "errors types settings plan kernels passes locations records locks arrays store outputs progress runtime work memory "
    "tables cubes annotated files data preprocess exchange audit neighbors cells partitions descent transition columns "
    "selection criterion memberships missing fingerprint result given approximate graphs grid predict exports changes "
    "pipeline flows forecast report demo warmup estimator cli"
).split()
#: Foreign package -> the one module that may import it.
DOORS = {
    "fsspec": "places",
    "zarr": "arrays",
    "distributed": "runtime",
    "dask_ml": "preprocess",
    "pandas": "tables",
    "xarray": "cubes",
    "anndata": "annotated",
    "pynndescent": "descent",
}
STAGES = (
    "preprocess exchange audit neighbors cells partitions descent transition columns selection criterion memberships "
    "missing"
).split()


def imports(name):
    """(module, imported name) of every import in a module of ours, function bodies included."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def ours(name):
    for module, what in imports(name):
        if module == "cns_dask":
            yield what
        elif module.startswith("cns_dask."):
            yield module.split(".")[1]


def test_the_table_of_modules_is_complete():
    assert sorted(ORDER) == sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", ORDER)
def test_modules_import_only_from_above(name):
    above = ORDER[: ORDER.index(name)]
    assert [module for module in ours(name) if module not in above] == []


@pytest.mark.parametrize("name", ORDER)
def test_each_foreign_package_has_one_door(name):
    for module, _ in imports(name):
        assert DOORS.get(module.split(".")[0], name) == name


@pytest.mark.parametrize("name", STAGES)
def test_stages_know_neither_workers_nor_stores(name):
    assert not {"runtime", "store", "outputs", "work", "result", "pipeline"} & set(ours(name))


def test_readers_of_results_do_not_know_the_pipeline():
    for name in ("result", "predict", "report"):
        assert "pipeline" not in set(ours(name))
    for name in ("plan", "kernels"):
        assert not any(module.split(".")[0] == "dask" for module, _ in imports(name))


def public():
    """Every public name, and the methods of those that are classes."""
    for name in cns_dask.__all__:
        found = getattr(cns_dask, name)
        yield name, found
        if inspect.isclass(found):
            for method, value in vars(found).items():
                if not method.startswith("_") and isinstance(value, FunctionType | classmethod):
                    yield f"{name}.{method}", value


@pytest.mark.parametrize(("name", "found"), list(public()))
def test_every_public_name_has_an_example_that_runs(name, found):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(found) or "")
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
