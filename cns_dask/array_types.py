"""Names for kinds of arrays in signatures."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.int64]
#: A NumPy array, a Dask array or an opened Zarr array: something with a shape that is sliced like an array.
ArrayLike: TypeAlias = Any
