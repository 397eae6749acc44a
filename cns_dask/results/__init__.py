"""A stored fit, opened: any K, `predict`, `changes` over time, tables, Parquet, AnnData, the HTML `report`.

It must not know the pipeline.
"""
