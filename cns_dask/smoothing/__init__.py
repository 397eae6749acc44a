"""The paper: the `walk` (W), `passes` over it, the `solver`, `candidates`, `picks`, `criterion`, `memberships`.

`plan` sizes and describes the stages, `grid` runs them. It must not know where the rows came from.
"""
