"""Newton's form of the resolvent."""

import numpy as np
import pytest

from cns_dask.smoothing.newton import newton_passes

LAMS = np.array([0.05, 0.1, 0.3])


@pytest.mark.parametrize("w", [0.3, 0.97, 0.2 + 0.1j])
def test_newton_form_of_the_resolvent(w):
    """One cycle on the scalar w: z/(z - w) is the weighted sum plus the known remainder."""
    nodes = np.array([1.0, -0.2, 0.4 + 0.1j, 0.8], complex)
    groups = newton_passes(nodes, LAMS)
    factor = groups[-1][-1].factor
    total, u, before = np.zeros(len(LAMS), complex), 1.0 + 0j, 0j
    for group in groups:
        for step in group:
            total += step.weights * u
            u, before = step.scale * (w - step.shift) * u + step.keep * before, u
    z = 1 / (1 - LAMS)
    np.testing.assert_allclose(total + factor * u * z / (z - w), z / (z - w), rtol=1e-12)
