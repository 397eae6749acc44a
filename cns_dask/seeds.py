"""The seed of a run that was given none: drawn once, and kept by every run that goes on with the same work."""

import os
import secrets

from cns_dask.storage.outputs import begun_work

LARGEST_SEED = 2**31 - 1  # that every package below takes


def chosen_seed(random_state: int | None, out: str | os.PathLike[str] | None, *, overwrite: bool) -> int:
    """The seed of a run: the caller's, that of the work at `out` which it would go on with, or a new one.

    Examples
    --------
    >>> chosen_seed(3, None, overwrite=False)
    3
    >>> chosen_seed(None, None, overwrite=False) <= LARGEST_SEED
    True
    """
    if random_state is not None:
        return random_state
    work = {} if out is None else begun_work(out, overwrite=overwrite)
    settings = work.get("settings")
    seed = settings.get("random_state") if isinstance(settings, dict) else None
    return seed if type(seed) is int and seed >= 0 else secrets.randbelow(LARGEST_SEED + 1)
