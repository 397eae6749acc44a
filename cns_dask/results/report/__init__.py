"""One page about a stored result, as a single HTML file: `write_report`.

`page` puts it together from what is `shown`; `coordinates`, `layout` and `density` make the map; `charts`, `diagrams`
and `svg` draw. The template, its style sheet and its script lie beside them.
"""

from cns_dask.results.report.page import write_report

__all__ = ["write_report"]
