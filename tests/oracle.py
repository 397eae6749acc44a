"""The method as one dense NumPy page: n x n matrices, direct solves, no Dask. It shares no code with the package."""

from dataclasses import dataclass

import numpy as np

TIE = 1e-9  # values closer than this are the same number


def prepare(X, metric, scale=True, max_components=100):
    X = np.asarray(X, float)
    X = X[:, np.ptp(X, axis=0) > 0] if np.any(np.ptp(X, axis=0) > 0) else X[:, :1]
    X = X - X.mean(0)
    X = X / np.where(X.std(0) > 0, X.std(0), 1) if scale else X
    if X.shape[1] > max_components:
        X = X @ np.linalg.svd(X, full_matrices=False)[2][:max_components].T
    return X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X


def distances(X):
    """Squared: a root would tie distances that differ in their last bit."""
    return np.stack([((X - x) ** 2).sum(1) for x in X])


def neighbors(D, k):
    order = np.argsort(D - np.diag(np.ones(len(D))), axis=1, kind="stable")  # the point itself comes first
    return order[:, :k]


def candidates(N, D, cap):
    degree = np.bincount(N.ravel(), minlength=len(N))
    found = np.flatnonzero(degree >= degree[N].max(1))
    if len(found) <= cap:
        return found
    apart = np.sqrt(D[np.ix_(found, found)]) + np.diag(np.full(len(found), np.inf))
    return found[np.argsort(-degree[found] * apart.min(1), kind="stable")[:cap]]


def transition(N):
    W = np.zeros((len(N), len(N)))
    np.put_along_axis(W, N, 1 / N.shape[1], axis=1)
    return W


def columns(W, lam, chosen):
    """Columns of (I - (1-lam) W)^-1, exactly 0 on rows that have no path to the column's point."""
    n, reach = len(W), (W > 0).astype(float)
    for _ in range(int(np.ceil(np.log2(n)))):
        reach = np.minimum(reach @ reach, 1)
    return np.linalg.solve(np.eye(n) - (1 - lam) * W, np.eye(n)[:, chosen]) * (reach[:, chosen] > 0)


def first_best(values):
    return int(np.argmax(values >= values.max() - TIE * abs(values.max())))


def greedy(x, K):
    s, c = x.sum(0), x.T @ x
    picks = [first_best(s)]
    while len(picks) < min(K, x.shape[1]):
        worst = c[:, picks].max(1) / s**2
        worst[picks] = np.inf
        picks.append(first_best(-worst))
    return picks


def memberships(P):
    return 1 / P.shape[1] + P - P.sum(1, keepdims=True) / P.shape[1]


@dataclass
class Fit:
    neighbors: np.ndarray
    candidates: dict
    picks: dict
    criterion: np.ndarray
    choice: tuple
    F: np.ndarray


def fit(X, ks, lams, K_max=30, cap=300):
    """Fit prepared rows."""
    n, D = len(X), distances(X)
    N = neighbors(D, max(ks))
    C, R, picks, P = np.full((len(ks), len(lams), K_max), np.nan), np.empty((len(ks), len(lams), 1)), {}, {}
    found = {k: candidates(N[:, :k], D, cap) for k in ks}
    for a, k in enumerate(ks):
        for b, lam in enumerate(lams):
            x = columns(transition(N[:, :k]), lam, found[k])
            chosen = greedy(x, K_max)
            picks[k, lam], P[k, lam] = found[k][chosen], lam * x[:, chosen]
            R[a, b] = (1 - lam) * (k**-0.5 - n**-0.5) ** 2
            for K in range(1, len(chosen) + 1):
                F = memberships(P[k, lam][:, :K])
                C[a, b, K - 1] = (F.max(1).mean() - (n - K + K * K) / (n * K)) / R[a, b, 0] if K > 1 else 0
    tied = np.transpose(np.nanmax(C - TIE / R) <= C + TIE / R, (1, 0, 2))
    b, a, K = np.unravel_index(np.argmax(tied), tied.shape)
    return Fit(N, found, picks, C, (ks[a], lams[b], int(K) + 1), memberships(P[ks[a], lams[b]][:, : K + 1]))
