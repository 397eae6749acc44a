"""The chunked kNN graph: `exact`, in `cells`, by `descent` (the door to pynndescent), or `given`; and its `recall`.

`plan` sizes and describes the stages, `search` runs them. It must not know lam or W.
"""
