"""Colours of clusters that stay distinct for many clusters, on light and dark pages, and for colour-blind people.

The first six are those of Okabe and Ito without black and yellow. Each one after them is the colour of medium lightness
that lies farthest from all before it in OKLab, as seen by people with normal, protanope and deuteranope vision
(simulated as by Machado et al., 2009), whichever is least. So fewer clusters have colours that lie farther apart.
"""

# fmt: off
PALETTE = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8e0e3c", "#36ebb7", "#1f23d2", "#8476ff",
    "#563e7d", "#805f71", "#c8030e", "#9abb81", "#a8cff6", "#b5dc5d", "#6943f7", "#cf02a6", "#618ed9", "#f3536a",
    "#35cdc3", "#6d02a3", "#596208", "#28555b", "#e0843c", "#3b59c9", "#756a49", "#626dd6", "#31a3bd", "#65568c",
    "#808444", "#c2cc8b", "#c19899", "#fb87f8", "#fe9566", "#aa83fe", "#b66496", "#d8aea8", "#991261", "#745344",
    "#3085c2", "#892312", "#eab81d", "#f6aad6", "#018d7c", "#97aac9", "#3835e4", "#806094", "#743495", "#cc69e2",
    "#6c65f8", "#485773", "#5835ba", "#40c15f", "#59ad83", "#b84b58", "#d06450", "#b746df", "#758a01", "#9e4829",
)
# fmt: on
OTHERS = "#8c8c8c"  # rows of no cluster


def cluster_colors(n: int) -> list[str]:
    """Colours of `n` clusters as "#rrggbb"; from the 61st on they repeat.

    Examples
    --------
    >>> cluster_colors(3)
    ['#0072b2', '#e69f00', '#009e73']
    """
    return [PALETTE[at % len(PALETTE)] for at in range(n)]
