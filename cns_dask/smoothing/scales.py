r"""The scale of the clusters: how many of them there are, from the rates at which walks leave groups of candidates.

The paper's criterion counts on walks that mix inside a cluster. They make 1/lam = sqrt(n) steps at most, and mixing in
a cluster of m points in d dimensions takes about (m/k)^(2/d): few steps in ten dimensions, about m/k in the plane.
There the criterion grows with every further representative, and two moons become thirty pieces. So walks are
continued: a walk that has ended at a candidate goes on from there. That is a Markov chain over the candidates, small at
any n.

| symbol | variable  | shape  | meaning                                                                          |
|--------|-----------|--------|----------------------------------------------------------------------------------|
| M      | absorbed  | (c, c) | chance that a walk from candidate i which ends at a candidate ends at j           |
| m      | masses    | (c,)   | rows whose walks end at candidate j more often than at any other                  |
| S      | flow      | (g, g) | rows that go from one group of candidates to another: symmetric, sums are m       |
| r      | rates     | (g+1,) | 0 = r_1 <= r_2 <= ...: 1 - eigenvalues of the chain on the groups                 |
| rho    | leaving   | (K,)   | the largest rate of the chain on K clusters: how fast the least stable is left    |
| K_e    | effective | (K,)   | exp(entropy of the clusters' sizes): K clusters of equal size would be so many    |

**The rule.** K clusters are a scale of the data if walks mix inside them long before they leave: r_{K+1} >> r_K. In
data without structure the rates follow Weyl's law, r_K ~ (K-1)^(2/d), whatever the shape, and log(r_{K+1} / r_K) is
(2/d) log(K / (K-1)). The evidence for K is how many times larger the gap is,

    evidence_K = (d/2) log(r_{K+1} / r_K) / log(K_e / (K_e - 1)),

the mean over the ks of the grid, at the smallest lam. In few dimensions, where walks do not mix, the graph of a small k
falls apart by chance: there the smallest and the largest evidence are left out, so that no k decides on K alone.
(d/2) log(r_{K+1} / r_K) is the logarithm of a ratio of volumes: how many times more points walks have reached when they
begin to leave. Beyond a hundredfold it is not better known, and counts no more (`LARGEST_GAP`); so a few rows far from
all others do not outweigh everything else. K_e instead of K says the same: setting one row aside is not finding a
cluster.

**Nothing to find.** The evidence of data without structure is about 1, but a ring has its rates in pairs (1, 1, 4, 4,
...) and a disc nearly so, which looks like three clusters. Walks leave thirds of a ring at a much larger rate than r_3,
because these have no borders: the partition itself is no good. So there is structure only if, for some K, both the
evidence and twice the evidence with rho_K instead of r_K reach `LEAST_STRUCTURE`. With more rows the latter goes to 0
wherever there are no borders. Where walks do not mix, the K of the largest evidence must have borders too, however few
(`LEAST_BORDERS`), and only K up to sqrt(n) count: smaller clusters have fewer rows than a walk has steps.

**How many at most.** With many rows up to 150 clusters are looked for, half as many as there are candidates. If the
number that stands out among these has no borders, only numbers up to 50 count: the more are looked at, the more often
the one with the largest evidence has it by chance.

**Small groups.** Candidates that stand for fewer than `min_cluster_size` rows join the candidate that they exchange
most rows with, before anything else; those that exchange none are outlying and start no cluster. r_{g+1}, which g
groups do not have, is the (geometric) mean rate at which walks mix inside the groups. It is too vague for the test
above, unless walks hardly ever leave.

**Which one.** In many dimensions (d > `MIXING_DIMENSION`) communities that have borders are used, and scales where no
community has one, if their clusters do not cut most communities (the rates of a sphere have gaps too). In few
dimensions scales are, and communities where a border in density splits one of their clusters: see `communities`,
`borders` and `islands`. Scales do not count if walks leave their clusters as fast as parts of data without structure,
while borders in density separate others: two noisy moons have six pieces of about the same size.

A cluster starts from all its candidates: F0 has the cluster's unit vector at each, and P_g is the sum of their columns.
That is the paper's closed form with several representatives, so all that follows from it still holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.settings import Grid
from cns_dask.smoothing.communities import Communities
from cns_dask.smoothing.criterion import Choice, choose
from cns_dask.storage.records import recordable

#: Default of `min_cluster_size`, in units of k.
LEAST_NEIGHBORHOODS = 2
#: Logarithm of a ratio of volumes beyond which a gap counts no more.
LARGEST_GAP = np.log(100)
#: Evidence below which there is no cluster structure, where walks do not mix and where they do: 95 % of data without
#: structure, of 300 rows and more, have less.
LEAST_STRUCTURE = 1.75, 3.0
#: Clarity from which a scale is clear. Mixtures of Gaussians 6 standard deviations apart have 0.98 to 1, and those 4
#: apart up to 0.95.
CLEAR = 0.95
#: Evidence of data without structure, on average.
WITHOUT_STRUCTURE = 1.0
#: Evidence with borders below which the number of clusters that stands out most does not count.
LEAST_BORDERS = 0.1
#: Rate below which walks hardly ever leave.
HARDLY_EVER = 0.01
#: Dimension up to which walks of sqrt(n) steps do not mix inside a cluster.
MIXING_DIMENSION = 3.0
#: Weight of the start solution for communities, at least. Longer walks leave clusters of few rows: with 0.1 some of
#: them would have no row left, and with 0.2 to 0.5 the mean AMI is the same.
COMMUNITY_LAM = 0.3
#: Relative difference of numbers of clusters up to which they count as near.
NEAR = 0.1
#: Smaller rates are those of groups that exchange no walks.
SMALLEST_RATE = 1e-9
#: Dimension that is assumed where there are no distances to tell it.
ASSUMED_DIMENSION = 3.0


def walks_mix(dimension: float | None) -> bool:
    """Tell whether walks of sqrt(n) steps mix inside clusters of this intrinsic dimension."""
    return dimension is not None and dimension > MIXING_DIMENSION


def least_structure(dimension: float | None) -> float:
    """Return the evidence below which data of this intrinsic dimension have no cluster structure."""
    return LEAST_STRUCTURE[walks_mix(dimension)]


@recordable
@dataclass(frozen=True)
class Chain:
    """The chain over the candidates of one k, for K = 1, 2, ... clusters."""

    rates: FloatArray  # r_1, ..., r_{g+1} of g groups of candidates
    leaving: FloatArray  # rho of K clusters (K,)
    effective: FloatArray  # effective number of clusters (K,)
    clusters: IntArray  # cluster of every candidate (K, c); -1 if it is outlying


@dataclass(frozen=True)
class Evidence:
    """Evidence for K = 1, 2, ... clusters, of every k (k, K), and what is left of it if clusters must have borders."""

    values: FloatArray
    with_borders: FloatArray
    dimension: float | None  # intrinsic dimension of the data
    n_rows: int

    @property
    def mixes(self) -> bool:
        """Whether walks mix inside clusters."""
        return walks_mix(self.dimension)

    @property
    def total(self) -> FloatArray:
        """The evidence for each K (K,): over the ks, where walks do not mix without the smallest and the largest."""
        return self._over_ks(self.values)

    def _over_ks(self, values: FloatArray) -> FloatArray:
        if self.mixes or len(values) < 3:
            return np.asarray(values.mean(axis=0))
        return np.asarray(np.sort(values, axis=0)[1:-1].mean(axis=0))

    @property
    def structure(self) -> float:
        """The evidence that there are clusters at all."""
        both = np.minimum(self.total, 2 * self._over_ks(self.with_borders))
        if self.mixes:
            return float(both.max(initial=0.0))
        if self.with_borders.mean(axis=0)[int(self.total.argmax())] < LEAST_BORDERS:
            return 0.0
        return float(both[: math.isqrt(self.n_rows)].max(initial=0.0))

    def has_borders(self, n_clusters: int) -> bool:
        """Tell whether walks leave clusters more slowly than parts of data without structure."""
        return bool(self._over_ks(self.with_borders)[n_clusters - 1] >= WITHOUT_STRUCTURE)

    @property
    def has_structure(self) -> bool:
        """Tell whether the evidence for clusters is larger than that of data without structure."""
        return self.structure >= self.least_structure

    @property
    def least_structure(self) -> float:
        """The evidence below which there is no cluster structure."""
        return least_structure(self.dimension)

    def up_to(self, limit: int) -> "Evidence":
        """The same with next to no evidence for more clusters than `limit`: they can still be asked for."""
        counts = np.arange(self.values.shape[1]) < limit
        values = np.where(counts, self.values, np.minimum(self.values, SMALLEST_RATE))
        return replace(self, values=values, with_borders=self.with_borders * counts)

    def near(self, n_clusters: int) -> float:
        """The largest evidence for a number of clusters or one near it."""
        width = round(NEAR * n_clusters)
        return float(self.total[max(1, n_clusters - width - 1) : n_clusters + width].max(initial=0.0))


def chain_of(absorbed: FloatArray, masses: FloatArray, least_rows: int, limit: int, *, is_asked: bool = False) -> Chain:
    """The chain over candidates (c, c), from where their walks end, cut into up to `limit` clusters.

    Where nothing has `least_rows` rows there is one cluster if the caller asked for so many (`is_asked`); else all that
    is small and far from everything else is a cluster nevertheless.
    """
    sums = absorbed.sum(axis=1, keepdims=True)
    M = np.divide(np.maximum(absorbed, 0), sums, out=np.eye(len(absorbed)), where=sums > 0)
    rows_between = np.maximum(masses, 1)[:, None] * M
    flow = (rows_between + rows_between.T) / 2
    group = join_small(flow, masses, least_rows)
    if (group < 0).all():
        group = np.zeros_like(group) if is_asked else np.arange(len(group))
    present = np.unique(group[group >= 0])
    member = (group[None, :] == present[:, None]).astype(float)  # (g, c)
    group_flow, group_masses = member @ flow @ member.T, member @ masses
    rates, vectors = rates_of(group_flow)
    n_cuts = min(limit, len(present))
    clusters = np.full((n_cuts, len(group)), -1)
    leaving, effective = np.zeros(n_cuts), np.ones(n_cuts)
    for K in range(1, n_cuts + 1):
        cluster_of_group = largest_first(cut(vectors, K), group_masses)
        clusters[K - 1] = np.where(group >= 0, cluster_of_group[np.searchsorted(present, group)], -1)
        leaving[K - 1] = largest_rate(summed(group_flow, cluster_of_group))
        shares = np.bincount(cluster_of_group, group_masses) / max(1.0, group_masses.sum())
        effective[K - 1] = np.exp(-(shares * np.log(np.maximum(shares, 1e-300))).sum())
    within = max(mixing_rate(flow, group, present, group_masses), float(rates[-1]))
    return Chain(np.append(rates, within), leaving, effective, clusters)


def join_small(flow: FloatArray, masses: FloatArray, least_rows: int) -> IntArray:
    """The group of every candidate (c,): small ones join the one they exchange most rows with; -1 for outlying ones.

    Examples
    --------
    >>> flow = np.array([[9.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> join_small(flow, np.array([10.0, 2.0, 1.0]), least_rows=5)
    array([ 0,  0, -1])
    """
    between, masses = flow.copy(), masses.astype(float)
    np.fill_diagonal(between, 0)
    group, is_open = np.arange(len(flow)), masses < least_rows
    while is_open.any():
        smallest = int(np.argmin(np.where(is_open, masses, np.inf)))
        nearest = int(np.argmax(between[smallest]))
        is_open[smallest] = False
        if between[smallest, nearest] <= 0:
            group[group == smallest] = -1
            continue
        group[group == smallest] = nearest
        masses[nearest] += masses[smallest]
        between[nearest] += between[smallest]
        between[:, nearest] += between[:, smallest]
        between[smallest], between[:, smallest] = 0, 0
        between[nearest, nearest] = 0
        is_open[nearest] = masses[nearest] < least_rows
    return group


def rates_of(flow: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rates 1 - w of a reversible chain with symmetric flow, ascending, and its eigenvectors (g, g)."""
    values, vectors = np.linalg.eigh(_symmetric(flow))
    return np.clip(1 - values[::-1], 0, 1), vectors[:, ::-1]


def largest_rate(flow: FloatArray) -> float:
    """Return the largest rate 1 - w of a reversible chain with symmetric flow."""
    return float(np.clip(1 - np.linalg.eigvalsh(_symmetric(flow))[0], 0, 1))


def _symmetric(flow: FloatArray) -> FloatArray:
    """Return the symmetric matrix (g, g) that has the eigenvalues of a chain with this flow."""
    root = np.sqrt(np.maximum(flow.sum(axis=1), np.finfo(float).tiny))
    return np.asarray(flow / np.outer(root, root))


def cut(vectors: FloatArray, n_clusters: int) -> IntArray:
    """Cut groups into clusters by the first eigenvectors: those that point the same way are one cluster.

    A QR decomposition with pivoting finds the groups that point most differently, the polar factor of their vectors
    turns the axes to them (Damle, Minden and Ying, 2019). Rotations among equal rates change nothing.
    """
    from scipy.linalg import qr

    V = vectors[:, :n_clusters]
    pivots = qr(V.T, mode="r", pivoting=True)[1][:n_clusters]
    clusters = np.abs(V @ _rotation(V[pivots].T)).argmax(axis=1)
    clusters[pivots] = np.arange(len(pivots))  # so that none is empty
    return np.asarray(clusters)


def _rotation(matrix: FloatArray) -> FloatArray:
    """Return the polar factor of a square matrix of full rank: the orthogonal matrix nearest to it."""
    squares, axes = np.linalg.eigh(matrix @ matrix.T)  # half of the time of a singular value decomposition
    return np.asarray((axes / np.sqrt(np.maximum(squares, np.finfo(float).tiny))) @ axes.T @ matrix)


def summed(flow: FloatArray, clusters: IntArray) -> FloatArray:
    """Sum a flow (g, g) over the clusters of its groups (K, K)."""
    K = int(clusters.max()) + 1
    pairs = clusters[:, None] * K + clusters
    return np.bincount(pairs.ravel(), flow.ravel(), K * K).astype(float, copy=False).reshape(K, K)


def largest_first(clusters: IntArray, masses: FloatArray) -> IntArray:
    """The same clusters, numbered by their size.

    Examples
    --------
    >>> largest_first(np.array([1, 0, 0]), np.array([9.0, 2.0, 3.0]))
    array([0, 1, 1])
    """
    sizes = np.bincount(clusters, weights=masses)
    return np.asarray(np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")[clusters])


def mixing_rate(flow: FloatArray, group: IntArray, present: IntArray, masses: FloatArray) -> float:
    """Geometric mean of the rates at which walks mix inside the groups, by their rows; 1 for a single candidate."""
    logs = np.zeros(len(present))
    for at, each in enumerate(present):
        members = np.flatnonzero(group == each)
        if len(members) > 1:
            logs[at] = np.log(max(rates_of(flow[np.ix_(members, members)])[0][1], SMALLEST_RATE))
    return float(np.exp(np.average(logs, weights=masses))) if masses.sum() > 0 else 1.0


def gaps(chain: Chain, dimension: float) -> FloatArray:
    """Return the logarithm of the ratio of volumes between r_K and r_{K+1} for K = 1, 2, ..., as far as it counts."""
    return np.asarray(np.clip(dimension / 2 * np.diff(np.log(np.clip(chain.rates, SMALLEST_RATE, 1))), 0, LARGEST_GAP))


def clarity(chains: Sequence[Chain], n_clusters: int, dimension: float | None) -> float:
    """Return the gap of a number of clusters relative to the largest that counts, the mean over the chains."""
    d = ASSUMED_DIMENSION if dimension is None else dimension
    known = [gaps(chain, d)[n_clusters - 1] for chain in chains if n_clusters < len(chain.rates)]
    return float(np.mean(known) / LARGEST_GAP) if known else 0.0


def evidence_of(
    chains: Sequence[Chain], dimension: float | None, n_rows: int, limit: int, few: int | None = None
) -> Evidence:
    """The evidence for K = 1, ..., limit clusters in the chains of every k.

    If no number stands out, only numbers up to `few` have more than next to none.
    """
    d = ASSUMED_DIMENSION if dimension is None else dimension
    values, with_borders = np.zeros((2, len(chains), limit))
    for at, chain in enumerate(chains):
        n_cuts = min(len(chain.effective), limit)
        K = np.arange(2, n_cuts + 1)
        if not len(K):
            continue
        rates = np.log(np.clip(chain.rates, SMALLEST_RATE, 1))
        leaving = np.log(np.clip(chain.leaving[K - 1], SMALLEST_RATE, 1))
        effective = chain.effective[K - 1]
        unit = np.log(effective / np.maximum(effective - 1, 1e-12))
        # a K that can be cut has some evidence, however little
        values[at, K - 1] = np.maximum(gaps(chain, d)[K - 1], SMALLEST_RATE) / unit
        with_borders[at, K - 1] = np.clip(d / 2 * (rates[K] - leaving), 0, LARGEST_GAP) / unit
        if len(chain.rates) - 1 == n_cuts and chain.leaving[n_cuts - 1] > HARDLY_EVER:
            with_borders[at, n_cuts - 1] = 0  # its r_{K+1} is a mean, too vague for a test
    evidence = Evidence(values, with_borders, dimension, n_rows)
    return evidence if few is None or evidence.has_structure else evidence.up_to(few)


@recordable
@dataclass(frozen=True)
class Selection:
    """Which choice is used, and why; and the choices of the paper's criterion and of the scales."""

    used: Choice
    why: str  # in words
    paper: Choice
    scales: Choice | None  # None where there are too few candidates
    dimension: float | None  # intrinsic dimension of the data; None if it is not known
    structure: float  # evidence that there are clusters at all
    evidence: float  # evidence for the K of the paper's choice, or one near it
    communities: Choice | None = None  # None if they were not looked for
    ratio: float | None = None  # modularity of the communities relative to data without clusters
    hint: str = ""  # what another treatment of the features would show, where no community has a border
    confirmed: bool = True  # whether communities confirm the scales
    stand: bool = False  # whether all communities stand


@dataclass(frozen=True)
class Basis:
    """What a selection is made from."""

    surface: FloatArray  # the paper's criterion of every (k, lam, K)
    evidence: Evidence
    grid: Grid
    communities: Communities | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of the fit."""
        return self.evidence.n_rows

    def paper(self, n_clusters: int | None = None) -> Choice | None:
        """The paper's choice; None if it does not have so many clusters."""
        if n_clusters is not None:
            available = self.surface[:, :, n_clusters - 1 : n_clusters]
            if not available.size or np.isnan(available).all():
                return None
        return choose(self.surface, self.grid, self.n_rows, n_clusters)

    def in_communities(self, n_clusters: int | None = None) -> Choice | None:
        """The clusters of communities that have borders, or so many; None if there are fewer communities."""
        if self.communities is None or (n_clusters or 1) > len(self.communities.clusters):
            return None
        K = min(self.communities.n_clusters, self.grid.max_scale) if n_clusters is None else n_clusters
        k, lams = self.grid.ks[min(1, len(self.grid.ks) - 1)], self.grid.lams
        lam = lams[-1] if len(lams) == 1 else max(lams[-1], COMMUNITY_LAM)
        return Choice(k, lam, K, self.communities.modularity, None, "communities")

    def whole(self, structure: float) -> Choice:
        """One cluster, because of so little evidence for more."""
        return replace(
            choose(self.surface, self.grid, self.n_rows, 1), value=structure, margin=None, selection="scales"
        )


def select(basis: Basis, selection: str, *, n_clusters: int | None = None) -> Selection:
    """Choose k, lam and K.

    Parameters
    ----------
    basis
        The criterion, the evidence and the communities.
    selection
        "paper", "scales", "communities" or "auto".
    n_clusters
        Look only at this K.
    """
    evidence, paper = basis.evidence, basis.paper(n_clusters)
    numbers = range(1, len(evidence.total) + 1) if n_clusters is None else [n_clusters]
    scales, communities = best_scale(evidence, basis.grid, numbers), basis.in_communities()
    first = paper or scales or basis.in_communities(n_clusters)
    if first is None:
        raise ValueError(f"No grid point has {n_clusters or 'any number of'} clusters.")
    of_all = scales if n_clusters is None else best_scale(evidence, basis.grid, range(1, len(evidence.total) + 1))
    used, why = _chosen(basis, selection, basis.paper() or first, of_all)
    if n_clusters is not None and used.n_clusters != n_clusters:
        used, why = _with_number(basis, selection, first, scales, n_clusters), "n_clusters was given"
    near, found = evidence.near(first.n_clusters), basis.communities
    about = () if found is None else (found.ratio, found.hint, found.confirms_scales, found.stand)
    return Selection(used, why, first, scales, evidence.dimension, evidence.structure, near, communities, *about)


def _chosen(basis: Basis, selection: str, paper: Choice, scales: Choice | None) -> tuple[Choice, str]:
    """The choice if no number of clusters was given, and why."""
    if selection == "paper":
        return paper, "it was asked for"
    evidence, by_communities = basis.evidence, _by_communities(basis, selection)
    if by_communities is not None:
        return by_communities
    if not evidence.has_structure or scales is None:
        return basis.whole(evidence.structure), "no number of clusters stands out from data without structure"
    found = basis.communities
    if selection == "auto" and evidence.mixes and found is not None and not found.confirms_scales:
        return basis.whole(evidence.structure), "clusters of the best scale cut most communities"
    if selection == "scales":
        return scales, "it was asked for"
    return scales, "no community has a border" if evidence.mixes else "the data have few dimensions"


def _by_communities(basis: Basis, selection: str) -> tuple[Choice, str] | None:
    """The choice by communities, and why; None if they are not used."""
    communities, found = basis.in_communities(), basis.communities
    if communities is None or found is None:
        return None
    if selection == "communities":
        return communities, "it was asked for"
    if selection == "auto" and basis.evidence.mixes and found.ratio is not None and communities.n_clusters > 1:
        return communities, _why_communities(found)
    if selection == "auto" and not basis.evidence.mixes and found.adds_borders:
        return communities, "borders in density separate more clusters than walks do"
    return None


def _why_communities(found: Communities) -> str:
    return (
        "the graph is more modular than that of data without clusters" if found.stand else "borders in density separate"
    )


def _with_number(basis: Basis, selection: str, paper: Choice, scales: Choice | None, n_clusters: int) -> Choice:
    """The choice of a given number of clusters."""
    if selection == "paper":
        return paper
    communities = basis.in_communities(n_clusters) if selection == "communities" or basis.evidence.mixes else None
    return communities or scales or paper


def least_rows(n_neighbors: int, n_rows: int) -> int:
    """Default of `min_cluster_size`: twice k, but no more than a tenth of the rows.

    Examples
    --------
    >>> least_rows(24, 5000), least_rows(24, 100)
    (48, 10)
    """
    return max(1, min(LEAST_NEIGHBORHOODS * n_neighbors, n_rows // 10))


def best_scale(evidence: Evidence, grid: Grid, numbers: Sequence[int]) -> Choice | None:
    """The number of clusters with the largest evidence, among some; None if there is evidence for none of them."""
    total = evidence.total
    allowed = [K for K in numbers if 1 < K <= len(total) and total[K - 1] > 0]
    if not allowed:
        return None
    best = max(allowed, key=lambda K: total[K - 1])
    others = [float(total[K - 1]) for K in allowed if best != K]
    value = float(total[best - 1])
    k = grid.ks[int(evidence.values[:, best - 1].argmax())]
    return Choice(k, grid.lams[0], best, value, value - max(others) if others else None, "scales")


def intrinsic_dimension(distances: FloatArray) -> tuple[float, int]:
    """Sum and number of log(d_k / d_j) over neighbours j of some rows (m, k): their mean is 1 / dimension.

    That is the estimate of largest likelihood. Distances of 0 (copies of a row) tell nothing about the dimension.
    """
    largest, inner = distances[:, -1:], distances[:, 1:-1]
    known = (inner > 0) & (largest > 0)
    logs = np.log(np.divide(largest, inner, out=np.ones_like(inner), where=known))
    return float(logs[known].sum()), int(known.sum())
