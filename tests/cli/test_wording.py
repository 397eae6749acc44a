import pytest

from cns_dask.cli.wording import in_options


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("Choose others with columns=[...], or turn these", "Choose others with --columns NAME,..., or turn these"),
        ("a fit skips them with missing='skip'.", "a fit skips them with --missing skip."),
        ("c.zarr already exists. Choose another output, or overwrite it.",
         "c.zarr already exists. Choose another --out, or replace it with --overwrite."),
        ("tol must be a number. Got 2.", "--tol must be a number. Got 2."),
        ("columns has no meaning for a .npy file.", "--columns has no meaning for a .npy file."),
        ("The graph was made with scale=False, asked for scale=True. Leave scale out",
         "The graph was made with --no-scale, asked for --scale. Leave --scale out"),
        ("Use a smaller max_candidates.", "Use a smaller --max-candidates."),
        ("made with max_components=None", "made with --max-components 0"),
        ("Give data, or n_rows and n_features", "Give data, or --rows and --columns"),
        ("Or cluster a sample: sample=100000 needs 5 MiB.", "Or cluster a sample: --sample 100000 needs 5 MiB."),
        ("Leave sample or within out.", "Leave sample or within out."),
    ],
)  # fmt: skip
def test_parameters_become_options(python, line):
    assert in_options(python) == line


@pytest.mark.parametrize(
    "text",
    [
        "There are no data at /data/sample=3/tol/max_clusters.npy: nothing exists there.",
        "s3://bucket/missing=skip/x.parquet does not exist",
        "It has 'n_neighbors', 'lam'.",
        "The columns that hold a sample must be numbers",
    ],
)
def test_names_of_files_and_plain_words_stay(text):
    assert in_options(text) == text
