"""Runs Triton kernels on a CPU with NumPy, the whole grid at once, every access checked; see `active`.

memory = Memory()
memory.declare(cache, name="cache", state=shadow)
with active(memory) as trace:
    wrapper(...)                       # launches triton.jit kernels on CPU tensors
trace.launches, trace.behaviours, memory.accesses
"""

from harness.executors.gridsim.ir import Block, Function, Line, Op, Type, Unsupported, parse
from harness.executors.gridsim.launch import Launch, Trace, active, traced
from harness.executors.gridsim.memory import Access, Memory
from harness.executors.gridsim.selftest import self_test

__all__ = [
    "Access",
    "Block",
    "Function",
    "Launch",
    "Line",
    "Memory",
    "Op",
    "Trace",
    "Type",
    "Unsupported",
    "active",
    "parse",
    "self_test",
    "traced",
]
