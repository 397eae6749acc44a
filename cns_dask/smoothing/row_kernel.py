"""The sum over one row's neighbours as LLVM vectors.

Numba does not keep the sum of a row of a block in registers by itself (measured: three times slower).
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Rows of the block are fetched from memory so many list entries before they are added: a quarter less time for a pass
#: over more than the cache holds (32 to 128 differ little).
AHEAD = 64


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
        begin = builder.mul(builder.sub(at, first), count)
        listed = builder.gep(graph.data, [begin])
        last = builder.sub(builder.mul(builder.extract_value(graph.shape, 0), count), index(1))
        address, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")

        def fetch(position: Any) -> None:
            """Have the row of an entry of this list, or of one of the next, brought into the cache."""
            entry = builder.add(begin, position)
            entry = builder.select(builder.icmp_signed("<", entry, last), entry, last)
            wanted = pointer(source, builder.zext(builder.load(builder.gep(graph.data, [entry])), index))
            builder.call(prefetch, [builder.bitcast(wanted, address), flag(0), flag(3), flag(1)])  # to read, keep, data

        def neighbor(position: Any) -> Any:
            fetch(builder.add(position, index(AHEAD)))
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
