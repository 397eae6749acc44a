"""Where and how work runs: `cluster`, `compute`, a `run` whose pieces are recorded, `memory`, `plan` and `forecast`.

It must not know clustering.
"""
