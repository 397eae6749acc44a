"""Recipes: their files are what the tools behind them expect, and their sizes are those that the plan recommends."""

import math
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from cns_dask import Settings, plan
from cns_dask.sizing import plan_sizes, plan_stages

DEPLOY = Path(__file__).parents[1] / "deploy"
PLACES = ["compose", "kubernetes", "local", "slurm", "ssh", "tls"]
ROWS, COLUMNS, WORKERS, THREADS = 1_000_000, 16, 4, 2  # what the recipes are for


def text(name):
    return (DEPLOY / name).read_text(encoding="utf-8")


def commands(place):
    """The lines of the first block of commands in a README."""
    return re.search(r"```bash\n(.*?)```", text(f"{place}/README.md"), re.S)[1].splitlines()


def documents(place):
    return {path.stem: yaml.safe_load(path.read_text()) for path in (DEPLOY / place).glob("*.yaml")}


def test_one_folder_for_each_place_with_three_commands_and_no_python():
    assert sorted(path.name for path in DEPLOY.iterdir() if path.is_dir()) == PLACES
    assert all(len(commands(place)) == 3 for place in PLACES)
    assert not list(DEPLOY.rglob("*.py"))
    for place in PLACES:
        assert f"]({place}/README.md)" in text("README.md")


@pytest.mark.slow
def test_sizes_are_those_that_the_plan_recommends():
    needed = plan_stages(COLUMNS, *plan_sizes(ROWS, COLUMNS, Settings())).worker_bytes(THREADS)
    gib = math.ceil(needed / 2**30)
    assert f"{WORKERS} workers of {THREADS} threads and {gib} GiB each" in text("README.md")
    for place in ("local", "tls"):
        started = f"--nworkers {WORKERS} --nthreads {THREADS} --memory-limit {gib}GiB --preload cns_dask.warmup"
        assert started in "\n".join(commands(place))
        assert f"--wait-workers {WORKERS}" in commands(place)[-1]
    assert len(text("ssh/hosts.txt").split()) == WORKERS
    assert f'--nworkers 1 --nthreads "${{NTHREADS:-{THREADS}}}" --memory-limit "${{MEMORY:-{gib}GiB}}"' in text(
        "ssh/start.sh"
    )
    batch = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text("slurm/fit.sbatch"), re.M))
    assert (int(batch["ntasks"]), int(batch["cpus-per-task"])) == (WORKERS, THREADS)
    assert batch["mem-per-cpu"] == f"{gib * 1024 // THREADS}M"
    assert f"--memory-limit {gib}GiB" in text("slurm/fit.sbatch")
    queued = documents("slurm")["jobqueue"]["jobqueue"]["slurm"]
    assert (queued["cores"], queued["processes"], queued["memory"]) == (THREADS, 1, f"{gib}GiB")
    assert f"--jobs {WORKERS}" in text("slurm/README.md")
    worker = documents("kubernetes")["cluster"]["spec"]["worker"]
    pod = worker["spec"]["containers"][0]
    assert worker["replicas"] == WORKERS
    assert pod["resources"]["limits"]["memory"] == pod["resources"]["requests"]["memory"] == f"{gib}Gi"
    service = documents("compose")["compose"]["services"]["worker"]
    assert service["deploy"]["replicas"] == WORKERS
    assert service["deploy"]["resources"]["limits"] == {"cpus": str(THREADS), "memory": f"{gib}g"}
    for started in (pod["args"], service["command"]):
        assert {"--nworkers=1", f"--nthreads={THREADS}", f"--memory-limit={gib}GiB"} <= set(started)
    for name in ("ssh/start.sh", "slurm/fit.sbatch", "kubernetes/cluster.yaml", "compose/compose.yaml"):
        assert "cns_dask.warmup" in text(name)
    assert queued["worker-extra-args"] == ["--preload", "cns_dask.warmup"]
    forecast = plan(n_rows=ROWS, n_features=COLUMNS, threads=THREADS)
    assert forecast.limit_bytes == gib * 2**30
    assert forecast.flattens_at >= WORKERS


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_scripts_pass_shellcheck():
    scripts = [*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")]
    assert len(scripts) == 4
    run(Path(sys.executable).with_name("shellcheck"), *scripts)


def test_readme_commands_pass_shellcheck(tmp_path):
    for place in PLACES:
        (tmp_path / f"{place}.sh").write_text("#!/usr/bin/env bash\n" + "\n".join(commands(place)) + "\n")
    run(Path(sys.executable).with_name("shellcheck"), *tmp_path.iterdir())


def test_the_compose_file_fits_its_schema():
    check = Path(sys.executable).with_name("check-jsonschema")
    run(check, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose" / "compose.yaml")


def test_manifests_fit_their_schemas():
    import jsonschema
    import kubernetes_validate

    version = kubernetes_validate.latest_version()
    manifests = documents("kubernetes")
    kubernetes_validate.validate(manifests["job"], version, strict=True)
    folder = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    known = yaml.safe_load((folder / "daskcluster.yaml").read_text())["spec"]["versions"][0]["schema"]
    jsonschema.validate(manifests["cluster"], known["openAPIV3Schema"])
    for part in ("worker", "scheduler"):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": part},
            "spec": manifests["cluster"]["spec"][part]["spec"],
        }
        kubernetes_validate.validate(pod, version, strict=True)


def test_a_manifest_that_is_wrong_would_be_found():
    import kubernetes_validate

    wrong = documents("kubernetes")["job"]
    wrong["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)
