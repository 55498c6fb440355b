"""A decode loop with a tiny cache manager, recorded: `python examples/decode_loop.py`, on a GPU or without one."""

import sys

import torch
from my_decode import decode_kernel

from harness import anywhere, record

BLOCK_SIZE, NUM_BLOCKS, MAX_BLOCKS = 16, 64, 12
Q_HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64


def paged_decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
    """The kernel's wrapper, as a server calls it."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_kernel[q.shape[:2]](
        out, q, k_cache, v_cache, block_tables, seq_lens, scale, Q_HEADS // KV_HEADS, block_tables.shape[1],
        *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    return out


class Cache:
    """Blocks of K and V, a free list, and the table of each sequence; a prompt's full blocks may be shared."""

    def __init__(self, device):
        shape = (2, NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.k, self.v = torch.zeros(shape, dtype=torch.float16, device=device)
        self.free = list(range(NUM_BLOCKS))
        self.tables, self.lens, self.users = {}, {}, [0] * NUM_BLOCKS

    def add(self, name, tokens, like=None):
        """A sequence with a prompt; `like` names one whose full blocks it starts with."""
        shared = self.tables[like][: self.lens[like] // BLOCK_SIZE] if like is not None else []
        self.tables[name], self.lens[name] = list(shared), len(shared) * BLOCK_SIZE
        for block in shared:
            self.users[block] += 1
        for _ in range(tokens):
            self.append(name)

    def append(self, name):
        """One more token: random numbers where a model has its keys and values."""
        block, slot = divmod(self.lens[name], BLOCK_SIZE)
        if block == len(self.tables[name]):
            self.tables[name].append(self.free.pop())
            self.users[self.tables[name][-1]] = 1
        self.lens[name] += 1
        for cache in (self.k, self.v):
            cache[self.tables[name][block], slot] = torch.randn(KV_HEADS, HEAD_DIM).to(cache)

    def remove(self, name):
        """Give back the blocks that nobody else reads; what they hold stays where it is."""
        for block in self.tables.pop(name):
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)
        del self.lens[name]

    def metadata(self):
        """Block tables, padded with -1 to the widest that may come, and lengths."""
        rows = [table + [-1] * (MAX_BLOCKS - len(table)) for table in self.tables.values()]
        numbers = {"dtype": torch.int32, "device": self.k.device}
        return torch.tensor(rows, **numbers), torch.tensor(list(self.lens.values()), **numbers)


def serve(attend, steps, device):
    """Decode `steps` times; one sequence leaves on the way and another comes, in the blocks that it left."""
    torch.manual_seed(0)
    cache = Cache(device)
    cache.add("a", 37)
    cache.add("b", 5, like="a")
    cache.add("c", 90)
    for step in range(steps):
        if step == steps // 2:
            cache.remove("a")
            cache.add("d", 14)
        for name in cache.tables:
            cache.append(name)
        tables, lens = cache.metadata()
        q = torch.randn(len(lens), Q_HEADS, HEAD_DIM).to(cache.k)
        attend(q, cache.k, cache.v, tables, lens, HEAD_DIM**-0.5)


def main(into="recorded"):
    """Serve a little, and say what was recorded."""
    attend = record(paged_decode, into=into, subject="examples/my_decode.py:my_decode")
    with anywhere() as device:
        serve(attend, 12, device)
    print(attend.recorder.counts())


if __name__ == "__main__":
    main(*sys.argv[1:])
