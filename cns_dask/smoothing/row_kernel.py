"""The sum over one row's neighbours as LLVM vectors.

Numba does not keep the sum of a row of a block in registers by itself (measured: three times slower).
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def smooth_row(
    _: Any,
    neighbors: Any,
    block: Any,
    previous: Any,
    out: Any,
    peaks: Any,
    row: Any,
    first: Any,
    mean: Any,
    own: Any,
    keep: Any,
    lanes: Any,
) -> Any:
    """Write `mean * (sum of the row's neighbours) + own * (the row) + keep * (the row of previous)` into row of `out`.

    `neighbors` holds the lists of rows from `first` on. `peaks` (2, b) grows to the largest absolute value that was
    written in each vector, and by the value itself. `lanes` is a tuple of as many integers as the block has vectors:
    the compiler has to know b.
    """
    signature = types.void(neighbors, block, previous, out, peaks, row, first, mean, own, keep, lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        names, width = signature.args, len(signature.args[-1])
        graph, source, before, target, highest = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(names[:5], arguments[:5], strict=True)
        )
        at, first, mean, own, keep = arguments[5:10]
        number, index = context.get_value_type(names[1].dtype), ir.IntType(64)
        vector, align = ir.VectorType(number, width), names[1].dtype.bitwidth // 8

        def pointer(array: Any, position: Any) -> Any:
            start = builder.gep(array.data, [builder.mul(position, index(width))])
            return builder.bitcast(start, vector.as_pointer())

        def load(array: Any, position: Any) -> Any:
            return builder.load(pointer(array, position), align=align)

        def times(scalar: Any, values: Any) -> Any:
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
            return builder.fmul(builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), everywhere), values)

        count = builder.extract_value(graph.shape, 1)
        listed = builder.gep(graph.data, [builder.mul(builder.sub(at, first), count)])

        def neighbor(position: Any) -> Any:
            return load(source, builder.zext(builder.load(builder.gep(listed, [position])), index))

        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width))
        odd = builder.and_(count, index(1))
        with builder.if_then(builder.trunc(odd, ir.IntType(1))):
            builder.store(neighbor(index(0)), total)
        with cgutils.for_range_slice(builder, odd, count, index(2), intp=index) as (t, _):  # a pair per addition
            pair = builder.fadd(neighbor(t), neighbor(builder.add(t, index(1))))
            builder.store(builder.fadd(builder.load(total), pair), total)
        value = builder.fadd(times(mean, builder.load(total)), times(own, load(source, at)))
        value = builder.fadd(value, times(keep, load(before, at)))
        builder.store(value, pointer(target, at)).align = align
        peak = load(highest, index(0))
        for size in value, builder.fneg(value):
            peak = builder.select(builder.fcmp_ordered(">", size, peak), size, peak)
        builder.store(peak, pointer(highest, index(0))).align = align
        total = builder.fadd(load(highest, index(1)), value)
        builder.store(total, pointer(highest, index(1))).align = align
        return context.get_dummy_value()

    return signature, generate
