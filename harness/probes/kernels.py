"""The Triton kernels of the probes: one operation each, so that what comes out is the platform's doing."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ARG001 - functions of one shape

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def exp2(x, y, z):
    """2 to the power of x."""
    return tl.exp2(x)


@triton.jit
def exp(x, y, z):
    """As compilers make it: exp2 of x log2(e)."""
    return tl.exp(x)


@triton.jit
def log2(x, y, z):
    """To the base 2."""
    return tl.log2(x)


@triton.jit
def log(x, y, z):
    """To the base e."""
    return tl.log(x)


@triton.jit
def divide(x, y, z):
    """The division that `/` is."""
    return x / y


@triton.jit
def divide_rn(x, y, z):
    """The division of IEEE 754."""
    return tl.div_rn(x, y)


@triton.jit
def tanh(x, y, z):
    """The library's."""
    return libdevice.tanh(x)


@triton.jit
def tanh_by_sigmoid(x, y, z):
    """As many kernels write it."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def add(x, y, z):
    """One addition."""
    return x + y


@triton.jit
def multiply(x, y, z):
    """One product."""
    return x * y


@triton.jit
def multiply_add(x, y, z):
    """A product and an addition that a compiler may fuse."""
    return x * y + z


@triton.jit
def identity(x, y, z):
    """Nothing but the cast of the store."""
    return x


@triton.jit(do_not_specialize=["n"])
def elementwise(
    x_ptr,  # [n]
    y_ptr,  # [n]
    z_ptr,  # [n]
    out_ptr,  # [n], of the type that the result is cast to
    n,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`out = FUNCTION(x, y, z)`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    there = at < n
    x = tl.load(x_ptr + at, mask=there, other=1.0)
    y = tl.load(y_ptr + at, mask=there, other=1.0)
    z = tl.load(z_ptr + at, mask=there, other=1.0)
    tl.store(out_ptr + at, FUNCTION(x, y, z).to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def dot(
    a_ptr,  # [programs, M, K]
    b_ptr,  # [programs, K, N]
    c_ptr,  # [programs, M, N], float32
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One product of matrices a program, on matrix units where the types allow."""
    program = tl.program_id(0)
    rows = tl.arange(0, M)[:, None]  # [M, 1]
    columns = tl.arange(0, N)[None, :]  # [1, N]
    inner = tl.arange(0, K)  # [K]
    a = tl.load(a_ptr + program * M * K + rows * K + inner[None, :])  # [M, K]
    b = tl.load(b_ptr + program * K * N + inner[:, None] * N + columns)  # [K, N]
    c = tl.dot(a, b, input_precision=PRECISION)  # [M, N]
    tl.store(c_ptr + program * M * N + rows * N + columns, c)


@triton.jit
def weights(
    q_ptr,  # [programs, DIM]
    k_ptr,  # [programs, KEYS, DIM]
    v_ptr,  # [KEYS, KEYS]
    numerator_ptr,  # [programs, KEYS]
    alone_ptr,  # [programs, KEYS]
    scale,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """The weights of a textbook decode twice: as the product with v has them, and by themselves."""
    program = tl.program_id(0)
    keys = tl.arange(0, KEYS)  # [KEYS]
    dims = tl.arange(0, DIM)  # [DIM]
    q = tl.load(q_ptr + program * DIM + dims)  # [DIM]
    k = tl.load(k_ptr + program * KEYS * DIM + keys[:, None] * DIM + dims[None, :])  # [KEYS, DIM]
    v = tl.load(v_ptr + keys[:, None] * KEYS + keys[None, :])  # [KEYS, KEYS]
    scores = tl.sum(q[None, :] * k, axis=1) * scale  # [KEYS]
    p = tl.exp2(scores - tl.max(scores, axis=0))  # [KEYS]
    tl.store(numerator_ptr + program * KEYS + keys, tl.sum(p[:, None] * v, axis=0))
    tl.store(alone_ptr + program * KEYS + keys, p)
