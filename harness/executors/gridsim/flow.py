"""Follows values backwards through a kernel: which names can reach the pointers of its accesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.executors.gridsim.ir import Block, Function, Op

#: Operations that hand on the integers and pointers they get, or sums and products of them.
CARRYING = {
    "arith.addi", "arith.bitcast", "arith.extsi", "arith.muli", "arith.select", "arith.shli", "arith.subi", "tt.addptr",
    "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.make_tensor_descriptor", "tt.reshape", "tt.splat", "tt.trans",
    "tt.unsplat",
}  # fmt: skip
LOADS = {"tt.load", "tt.descriptor_load"}
STORES = {"tt.store", "tt.descriptor_store", "tt.atomic_rmw", "tt.atomic_cas"}
#: What a function that is not inlined gets and gives: it may access what it gets.
PASSING = {"tt.call", "tt.return"}


def addressing(function: Function) -> set[str]:
    """Name the values that can become the address of a load or a store."""
    return _reaching(function, LOADS | STORES | PASSING)


def stored(function: Function) -> set[str]:
    """Name the values that can become the address of a store; the kernel's arguments among them are written."""
    return _reaching(function, STORES | PASSING)


def waits(function: Function) -> bool:
    """Tell whether a loop without a count looks at what other programs do: it may wait for them."""
    loops = (op for op in operations(function.body) if op.name == "scf.while")
    inner = (op for loop in loops for region in loop.regions for op in operations(region))
    return any(op.name.startswith("tt.atomic") or op.attributes.get("isVolatile") for op in inner)


def _reaching(function: Function, ends: set[str]) -> set[str]:
    sources: dict[str, set[str]] = {}
    for into, given in _moves(function.body):
        sources.setdefault(into, set()).update(given)
    found: set[str] = set()
    last = (op for op in operations(function.body) if op.name in ends)
    work = [name for op in last for name in (op.operands if op.name in PASSING else op.operands[:1])]
    while work:
        name = work.pop()
        if name not in found:
            found.add(name)
            work += sources.get(name, ())
    return found


def operations(body: Iterable[Block]) -> Iterator[Op]:
    """Yield every operation, each before those of its regions."""
    for block in body:
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from operations(region)


def _moves(blocks: tuple[Block, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name with those whose values it may take over."""
    places = {block.label: block.args for block in blocks}
    for block in blocks:
        for target in block.ops[-1].targets if block.ops else ():
            yield from _pairs(places[target.label], target.operands)
        for op in block.ops:
            yield from _handed(op)
            for region in op.regions:
                yield from _moves(region)


def _handed(op: Op) -> Iterator[tuple[str, tuple[str, ...]]]:
    if op.name in CARRYING:
        yield op.results[0], op.operands[1:] if op.name == "arith.select" else op.operands
    elif op.name == "scf.for":
        body = op.regions[0][0]
        for given in (op.operands[3:], body.ops[-1].operands):
            yield from (*_pairs(body.args[1:], given), *_pairs(op.results, given))
    elif op.name == "scf.if":
        for region in op.regions:
            yield from _pairs(op.results, region[0].ops[-1].operands)
    elif op.name == "scf.while":
        before, after = op.regions[0][0], op.regions[1][0]
        yield from (*_pairs(before.args, op.operands), *_pairs(before.args, after.ops[-1].operands))
        given = before.ops[-1].operands[1:]
        yield from (*_pairs(after.args, given), *_pairs(op.results, given))


def _pairs(into: tuple[str, ...], given: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((name, (value,)) for name, value in zip(into, given, strict=False))
