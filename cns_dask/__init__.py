"""Clustering by non-parametric smoothing on Dask."""
