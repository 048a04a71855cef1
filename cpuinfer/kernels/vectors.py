"""Numba types for SIMD values and for the records that ops receive.

A `Vector` is a Numba type whose data model is an LLVM vector, so a value lives in registers and straight-line Python compiles to straight-line
instructions. Vectors are 512 bits wide where they hold data (LLVM splits them on narrower machines) and narrower only for parts of a block. Bytes carry
no sign: the operation says how it reads them.

A `Record` is the address of a numpy record whose fields are all 8 bytes; `op.rows` loads the field. Scalars and addresses are int64 and float32/float64.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
f16, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
Address = types.int64


class Vector(types.Type):
    """`lanes` elements of LLVM type `element`. `.ir` is the LLVM type, `.scalar` the Numba type of one lane as loops see it."""

    def __init__(self, name: str, element: ir.Type, lanes: int, scalar: types.Type):
        super().__init__(name=name)
        self.element, self.lanes, self.scalar = element, lanes, scalar
        self.ir = ir.VectorType(element, lanes)
        self.is_float = isinstance(element, (ir.FloatType, ir.HalfType))


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, frontend_type.ir)


u8x16 = Vector("u8x16", i8, 16, types.int64)
u8x32 = Vector("u8x32", i8, 32, types.int64)
u8x64 = Vector("u8x64", i8, 64, types.int64)
i16x16 = Vector("i16x16", i16, 16, types.int64)
i16x32 = Vector("i16x32", i16, 32, types.int64)
i32x16 = Vector("i32x16", i32, 16, types.int64)
f32x8 = Vector("f32x8", f32, 8, types.float32)
f32x16 = Vector("f32x16", f32, 16, types.float32)


class Record(types.Type):
    """The address of a record of numpy dtype `dtype`; attribute access loads a field."""

    def __init__(self, dtype: np.dtype):
        super().__init__(name=f"Record({dtype.descr})")
        self.dtype = dtype


@register_model(Record)
class RecordModel(models.PrimitiveModel):
    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, i64)


def _field_type(dtype: np.dtype, name: str):
    return types.float64 if dtype.fields[name][0].kind == "f" else types.int64


@infer_getattr
class RecordAttributes(AttributeTemplate):
    key = Record

    def generic_resolve(self, record, name):
        if name in record.dtype.fields:
            return _field_type(record.dtype, name)


@lower_getattr_generic(Record)
def _load_field(context, builder, record, value, name):
    element = f64 if record.dtype.fields[name][0].kind == "f" else i64
    address = builder.add(value, ir.Constant(i64, record.dtype.fields[name][1]))
    return builder.load(builder.inttoptr(address, ir.PointerType(element)), typ=element)
