"""The method as one dense NumPy page: n x n matrices, direct solves, no Dask.

It is the judge of the package, so it shares no code with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

TIE = 1e-9  # values closer than this, relatively, are the same number


def prepare(X: np.ndarray, metric: str, scale: bool = True, max_components: int = 100) -> np.ndarray:
    X = np.asarray(X, float)
    X = X[:, np.ptp(X, axis=0) > 0] if np.any(np.ptp(X, axis=0) > 0) else X[:, :1]
    X = X - X.mean(0)
    if scale:
        X = X / np.where(X.std(0) > 0, X.std(0), 1)
    if X.shape[1] > max_components:
        X = X @ np.linalg.svd(X, full_matrices=False)[2][:max_components].T
    return X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X


def distances(X: np.ndarray) -> np.ndarray:
    return np.sqrt(np.stack([((X - x) ** 2).sum(1) for x in X]))


def neighbors(D: np.ndarray, k: int) -> np.ndarray:
    D = D.copy()
    np.fill_diagonal(D, -1)  # the point itself comes first
    return np.argsort(D, axis=1, kind="stable")[:, :k]


def candidates(N: np.ndarray, D: np.ndarray, cap: int) -> np.ndarray:
    degree = np.bincount(N.ravel(), minlength=len(N))
    found = np.flatnonzero(degree >= degree[N].max(1))
    if len(found) <= cap:
        return found
    apart = D[np.ix_(found, found)] + np.diag(np.full(len(found), np.inf))
    return found[np.argsort(-degree[found] * apart.min(1), kind="stable")[:cap]]


def column_solves(W: np.ndarray, lam: float, chosen: np.ndarray) -> np.ndarray:
    """Columns of (I - (1-lam) W)^-1, exactly 0 on rows that have no path to the column's point."""
    n, reach = len(W), (W > 0).astype(float)
    for _ in range(int(np.ceil(np.log2(n)))):
        reach = np.minimum(reach @ reach, 1)
    return np.linalg.solve(np.eye(n) - (1 - lam) * W, np.eye(n)[:, chosen]) * (reach[:, chosen] > 0)


def first_best(values: np.ndarray) -> int:
    top = values.max()
    return int(np.argmax(values >= top - TIE * abs(top)))


def greedy(X: np.ndarray, K: int) -> list[int]:
    s, gram = X.sum(0), X.T @ X
    picks = [first_best(s)]
    while len(picks) < min(K, X.shape[1]):
        worst = gram[:, picks].max(1) / s**2
        worst[picks] = np.inf
        picks.append(first_best(-worst))
    return picks


def memberships(P: np.ndarray) -> np.ndarray:
    K = P.shape[1]
    return 1 / K + P - P.sum(1, keepdims=True) / K


@dataclass
class Fit:
    ks: list[int]
    lams: list[float]
    neighbors: np.ndarray
    candidates: dict[int, np.ndarray]
    picks: dict[tuple[int, float], np.ndarray]
    criterion: np.ndarray
    choice: tuple[int, float, int]
    F: np.ndarray


def fit(X: np.ndarray, metric: str = "euclidean", ks: Any = None, lams: Any = None, K_max: int = 30,
        cap: int = 300, scale: bool = True, max_components: int = 100) -> Fit:
    X = prepare(X, metric, scale, max_components)
    n, D = len(X), distances(X)
    unit = int(np.log(n))
    ks = ks or sorted({max(1, m * unit) for m in (1, 2, 3, 4) if max(1, m * unit) < n})
    lams = lams if lams is not None else [m / np.sqrt(n) for m in range(1, 6) if m / np.sqrt(n) < 1]
    N = neighbors(D, max(ks))
    C, picks, columns = np.full((len(ks), len(lams), K_max), np.nan), {}, {}
    found = {k: candidates(N[:, :k], D, cap) for k in ks}
    for a, k in enumerate(ks):
        W = np.zeros((n, n))
        W[np.arange(n)[:, None], N[:, :k]] = 1 / k
        for b, lam in enumerate(lams):
            cols = column_solves(W, lam, found[k])
            chosen = greedy(cols, K_max)
            picks[k, lam], columns[k, lam] = found[k][chosen], lam * cols[:, chosen]
            R = (1 - lam) * (k**-0.5 - n**-0.5) ** 2
            for K in range(1, len(chosen) + 1):
                F = memberships(columns[k, lam][:, :K])
                C[a, b, K - 1] = (F.max(1).mean() - (n - K + K * K) / (n * K)) / R if K > 1 else 0
    by_lam = np.transpose(C, (1, 0, 2)).ravel()
    b, a, K = np.unravel_index(np.argmax(by_lam >= np.nanmax(C) - TIE), (len(lams), len(ks), K_max))
    k, lam = ks[a], lams[b]
    F = memberships(columns[k, lam][:, : K + 1])
    return Fit(ks, list(lams), N, found, picks, C, (k, lam, int(K) + 1), F)
