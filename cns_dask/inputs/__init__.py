"""Whatever the caller has becomes an (n, d) Dask array, and answers go back in the same form.

`data` opens a source with the first of the adapters that can: `arrays`, `files`, `tables` (which reads `csv_files` and
`parquet_files`), `xarrays`, `anndatas`.
`scan` reads it once for hashes, `missing` finds rows to skip, `preprocess` scales and projects (the door to dask-ml).
It must not know neighbours or stores of results.
"""
