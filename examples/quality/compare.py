"""How good the automatic choice is, beside others that choose by themselves.

    python examples/quality/compare.py --toys --out quality                    # needs nothing
    python examples/quality/compare.py --data FOLDER --data FOLDER2 --toys --out quality
    python examples/quality/compare.py --seeds 20 --out quality                # how often K is right on toys
    python examples/quality/compare.py --seeds 2 --kinds mixtures,unbalanced,nulls --rows 1000,5000 --out quality
    python examples/quality/compare.py --data FOLDER --constants --out quality    # each constant halved and doubled

FOLDER holds .npz files with X (n, d) and y (n,). Writes `quality.csv`, `quality.md` and `quality.png` into the folder
`--out`. AMI is normalised by the maximum, as in the paper; both AMI and ARI are times 100. `CNS()` gets the features as
they are. Peers get them twice: treated as `CNS()` has treated them, and scaled to unit variance (marked *), as their
documentation recommends for tables. Leiden needs igraph and EVoC evoc (`pip install igraph evoc`); without them their
columns are left out.
"""

import argparse
import csv
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, silhouette_score
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import StandardScaler
from toys import ALIGNED, MIXTURES, NULLS, TOUCHING, TOYS, UNBALANCED, WITHOUT_CLUSTERS

from cns_dask import CNS
from cns_dask.errors import ChoiceWarning
from cns_dask.inputs import modes
from cns_dask.smoothing import borders, communities, islands, partition, plan, scales

SIZES = 500, 1500, 5000, 20000
LOW_DIMENSION = 3
SILHOUETTE_ROWS = 2000
MOST_CLUSTERS = 20


KINDS = {
    "toys": TOYS | WITHOUT_CLUSTERS,
    "mixtures": MIXTURES,
    "aligned": ALIGNED,
    "unbalanced": UNBALANCED,
    "touching": TOUCHING,
    "nulls": NULLS,
}


#: Constants of the choice, and where they are read. LEAST_STRUCTURE_RATIO is changed by what it exceeds 1.
CONSTANTS = {
    "CLIMBED": (communities,),
    "MOST_PARTS": (partition,),
    "SWEEPS": (partition, plan),
    "JOINED_SWEEPS": (partition, plan),
    "COMMUNITY_LAM": (scales,),
    "LEAST_STRUCTURE_RATIO": (partition, borders),
    "LEAST_DIP": (borders,),
    "GAP_FACTOR": (borders,),
    "SMALLEST_GAP": (borders,),
    "LEVELS": (islands,),
    "LEAST_STRUCTURE": (scales,),
    "WITHOUT_STRUCTURE": (scales,),
    "MIXING_DIMENSION": (scales,),
    "SHAPE_FEATURES": (modes,),
}


def ours(X):
    """Labels of all selections, from one fit; and the rows as it has treated them."""
    result = CNS().fit(X).result_
    labels = {"auto": result.labels.compute()}
    for selection in ("communities", "scales", "paper"):
        labels[selection] = result.at(selection=selection).labels.compute()
    return labels, result.points.compute()


def hdbscan(X):
    return HDBSCAN(copy=True).fit_predict(X)


def kmeans(X):
    """The K with the largest silhouette."""
    best, labels = -2.0, None
    for K in range(2, min(MOST_CLUSTERS, len(X) - 1) + 1):
        found = KMeans(K, n_init=3, random_state=0).fit_predict(X)
        score = silhouette_score(X, found, sample_size=min(len(X), SILHOUETTE_ROWS), random_state=0)
        if score > best:
            best, labels = score, found
    return labels


def leiden(X, k=15):
    """Modularity at resolution 1 on the graph of k neighbours."""
    import igraph

    neighbors = kneighbors_graph(X, min(k, len(X) - 1)).tocoo()
    graph = igraph.Graph(n=len(X), edges=np.column_stack([neighbors.row, neighbors.col])).simplify()
    return np.array(graph.community_leiden(objective_function="modularity", n_iterations=-1).membership)


def leiden_many(X):
    """The same with as many neighbours as the largest k of a fit."""
    return leiden(X, 4 * int(np.log(len(X))))


def evoc(X):
    from evoc import EVoC

    return EVoC(random_state=0).fit_predict(X.astype(np.float32))


PEERS = {"hdbscan": hdbscan, "kmeans": kmeans, "leiden": leiden, "leiden_4ln": leiden_many, "evoc": evoc}


def score(y, labels):
    if labels is None:
        return {"K": 0, "AMI": np.nan, "ARI": np.nan}
    return {
        "K": len(np.unique(labels[labels >= 0])),
        "AMI": 100 * adjusted_mutual_info_score(y, labels, average_method="max"),
        "ARI": 100 * adjusted_rand_score(y, labels),
    }


def compare(name, X, y, peers):
    """One row: the scores of every method."""
    X = np.asarray(X, float)
    X = X[:, np.ptp(X, axis=0) > 0]
    found, points = ours(X)
    scaled = StandardScaler().fit_transform(X)
    for peer in list(peers):
        try:
            found[peer], found[f"{peer}*"] = PEERS[peer](points), PEERS[peer](scaled)
        except ImportError as error:
            print(f"{peer} is left out: {error}")
            peers.remove(peer)
        except ValueError as error:  # EVoC needs more than four features
            print(f"{peer} has no answer for {name}: {error}")
            found[peer] = found[f"{peer}*"] = None
    row = {"data": name, "n": len(X), "d": X.shape[1], "K": len(np.unique(y))}
    for method, labels in found.items():
        row |= {f"{method} {what}": value for what, value in score(y, labels).items()}
    return row


def data_sets(folders, toys):
    """Name, rows and labels of everything that is compared."""
    for folder in folders:
        for path in sorted(Path(folder).glob("*.npz")):
            with np.load(path) as file:
                yield path.stem, file["X"], file["y"]
    if toys:
        for name, make in (TOYS | WITHOUT_CLUSTERS).items():
            for n in SIZES:
                yield f"{name} n={n}", *make(n, 0)


def changed(value, factor, name):
    """A constant that is halved or doubled."""
    if isinstance(value, tuple):
        return tuple(changed(each, factor, name) for each in value)
    if name == "LEAST_STRUCTURE_RATIO":
        return 1 + factor * (value - 1)
    return max(1, round(factor * value)) if isinstance(value, int) else factor * value


def mean_scores(sets):
    """Mean AMI of `CNS()` on shapes and on other data."""
    scores = {True: [], False: []}
    for _, X, y in sets:
        labels = CNS().fit(np.asarray(X, float)[:, np.ptp(X, axis=0) > 0]).labels_
        scores[X.shape[1] <= LOW_DIMENSION].append(score(y, labels)["AMI"])
    return [f"{np.mean(each):.1f}" if each else "-" for each in scores.values()]


def compare_constants(sets):
    """Return the table of mean AMI with each constant halved and doubled."""
    head = f"d <= {LOW_DIMENSION} | d > {LOW_DIMENSION}"
    lines = [f"| constant | halved: {head} | doubled: {head} |", "|---|---|---|---|---|"]
    lines.append("| as they are | " + " | ".join(2 * mean_scores(sets)) + " |")
    print(lines[-1], flush=True)
    for name, modules in CONSTANTS.items():
        value, means = getattr(modules[0], name), []
        for factor in (0.5, 2):
            for module in modules:
                setattr(module, name, changed(value, factor, name))
            means += mean_scores(sets)
        for module in modules:
            setattr(module, name, value)
        lines.append(f"| {name} | " + " | ".join(means) + " |")
        print(lines[-1], flush=True)
    return "\n".join(["", *lines]) + "\n"


def methods_of(rows):
    return [name.removesuffix(" AMI") for name in rows[0] if name.endswith(" AMI")]


def tables(rows):
    """The comparison as Markdown."""
    methods = methods_of(rows)
    low = [row for row in rows if row["d"] <= LOW_DIMENSION]
    high = [row for row in rows if row["d"] > LOW_DIMENSION]
    groups = {"all": rows}
    for name, members in ((f"d <= {LOW_DIMENSION}", low), (f"d > {LOW_DIMENSION}", high)):
        groups |= {name: members, f"{name}, first half": members[::2], f"{name}, second half": members[1::2]}
    lines = ["| mean AMI | sets | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for group, members in groups.items():
        if members:
            means = (np.nanmean([row[f"{method} AMI"] for row in members]) for method in methods)
            lines.append(f"| {group} | {len(members)} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |")
    lines += ["", "| auto against | wins | losses | (by more than one point of AMI)", "|---|---|---|---|"]
    for other in methods[1:]:
        gains = [row["auto AMI"] - row[f"{other} AMI"] for row in rows]
        lines.append(f"| {other} | {sum(gain > 1 for gain in gains)} | {sum(gain < -1 for gain in gains)} | |")
    lines += ["", "| data | n | d | K | " + " | ".join(methods) + " |", "|---" * (len(methods) + 4) + "|"]
    for row in rows:
        cells = (f"{row[f'{method} AMI']:.0f} (K {row[f'{method} K']})" for method in methods)
        lines.append(f"| {row['data']} | {row['n']} | {row['d']} | {row['K']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(rows, path):
    """Distribution of AMI of every method, in few and in more dimensions."""
    from matplotlib.figure import Figure

    methods = methods_of(rows)
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, is_low in zip(panels, (True, False), strict=True):
        some = [row for row in rows if (row["d"] <= LOW_DIMENSION) == is_low]
        axes.set_title(f"{len(some)} sets of {'at most' if is_low else 'more than'} {LOW_DIMENSION} features")
        for at, method in enumerate(methods):
            values = sorted((row[f"{method} AMI"] for row in some), reverse=True)
            axes.plot(values, label=method, linewidth=2.5 if at == 0 else 1.2, zorder=-at)
        axes.set_xlabel("data sets, best first")
    panels[0].set_ylabel("AMI")
    panels[1].legend(frameon=False)
    figure.savefig(path, dpi=120)


def count_right(kind, n_seeds, n):
    """How often the true K is found, over seeds."""
    lines = ["", f"| {kind} (n = {n}) | true K | found in | otherwise |", "|---|---|---|---|"]
    total = 0
    for name, make in KINDS[kind].items():
        found, true = defaultdict(int), 0
        for seed in range(n_seeds):
            X, y = make(n, seed)
            true = len(np.unique(y))
            found[CNS().fit(X).n_clusters_] += 1
        others = ", ".join(f"K {K}: {count}" for K, count in sorted(found.items()) if true != K)
        lines.append(f"| {name} | {true} | {found[true]} of {n_seeds} | {others} |")
        print(lines[-1], flush=True)
        total += found[true]
    lines.append(f"| all | | {total} of {n_seeds * len(KINDS[kind])} | |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="folder of .npz files; may be repeated")
    parser.add_argument("--toys", action="store_true", help="compare on generated toys too")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds for which right numbers are counted")
    parser.add_argument("--kinds", default="toys", help=f"what is counted with --seeds: {', '.join(KINDS)}")
    parser.add_argument("--rows", default="1500", help="numbers of rows with --seeds")
    parser.add_argument("--constants", action="store_true", help="only halve and double each constant")
    parser.add_argument("--peers", default=",".join(PEERS), help="methods to compare with")
    parser.add_argument("--out", type=Path, default=Path("quality"), help="folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", ChoiceWarning)
    peers = [peer for peer in options.peers.split(",") if peer]
    rows, text = [], ""
    if options.constants:
        (options.out / "constants.md").write_text(compare_constants(list(data_sets(options.data, options.toys))))
        return
    for name, X, y in data_sets(options.data, options.toys):
        rows.append(compare(name, X, y, peers))
        shown = {key: value for key, value in rows[-1].items() if key.endswith(("AMI", " K")) and np.isfinite(value)}
        print(name, {key: round(value) for key, value in shown.items()}, flush=True)
    if rows:
        with (options.out / "quality.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[-1]), extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        text += tables(rows)
        draw(rows, options.out / "quality.png")
    for kind in options.kinds.split(",") if options.seeds else ():
        for n in options.rows.split(","):
            text += count_right(kind, options.seeds, int(n))
    (options.out / "quality.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
