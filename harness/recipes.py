"""How other projects test the same operations: their shapes, data, oracle and tolerance as recipes that run here.

The facts were read in the suites named by `source`. What is too much for a CPU is made smaller, and `reduced` says
what: every value of an axis stays, not every combination.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any, Literal

from harness.case import Case, Op, Seq, States


@dataclass(frozen=True)
class Tolerance:
    """|got - truth| <= atol + rtol |truth|; or at most `times` what plain attention in q's type errs by, plus atol."""

    atol: float
    rtol: float = 0.0
    times: float = 0.0
    share: float = 0.0  # of the cells of a cache that may differ


@dataclass(frozen=True)
class Numbers:
    """The distribution of q, K and V; what the slots of nobody hold."""

    kind: Literal["normal", "uniform"] = "normal"
    mean: float = 0.0
    spread: float = 1.0  # standard deviation, or the bound of a uniform distribution
    unused: Literal["alike", "zero"] = "alike"


@dataclass(frozen=True)
class Recipe:
    """One suite's way to test one operation."""

    name: str
    source: str
    cases: tuple[Case, ...]
    tolerance: Tolerance
    numbers: Numbers = Numbers()
    oracle: Literal["truth", "blocks of one", "nothing"] = "truth"  # "blocks of one": the same kernel on such a cache
    lse: bool = False
    reduced: str = ""

    @property
    def project(self) -> str:
        """Whose suite it is."""
        return self.name.replace(",", "").split()[0]

    @property
    def op(self) -> Op:
        """The operation, the same in every case."""
        return self.cases[0].op


def _seqs(*pairs: tuple[int, int]) -> tuple[Seq, ...]:
    return tuple(Seq(query_len=query, kv_len=kv, tag=tag) for tag, (query, kv) in enumerate(pairs))


def _equal(batch: int, query_len: int, kv_len: int) -> tuple[Seq, ...]:
    return _seqs(*[(query_len, kv_len)] * batch)


def _heads(q: int, kv: int) -> dict[str, Any]:
    return {"num_q_heads": q, "num_kv_heads": kv}


#: Query and KV lengths of vLLM's tests of its unified kernel.
VLLM_LENS = (((1, 1328), (5, 18), (129, 463)), ((1, 523), (1, 37), (1, 2011)))


def _vllm_unified(op: Op, kv_dtype: str = "same") -> Iterator[Case]:
    heads = cycle([(4, 4), (8, 2), (5, 1)])
    options: Any = product(VLLM_LENS, (-1, 63, 127, 255), (0.0, 50.0))
    for pairs, left, softcap in options if kv_dtype == "same" else [(lens, -1, 0.0) for lens in VLLM_LENS]:
        seqs = _seqs(*((1 if op == "decode" else query, kv) for query, kv in pairs))
        features: dict[str, Any] = {
            "window": (left, -1),
            "softcap": softcap,
            "placement": "shuffled",
            "kv_dtype": kv_dtype,
        }
        yield Case(op=op, seqs=seqs, dtype="bfloat16", head_dim=128, **_heads(*next(heads)), **features)


def _vllm_prefix_prefill(kv_dtype: str) -> Iterator[Case]:
    seqs = _seqs((16, 80), (97, 233), (200, 456), (1, 129))
    for left, heads, dim in zip((-1, 15, 2047, -1), cycle([(8, 8), (8, 1)]), cycle([24, 128, 128, 24]), strict=False):
        shape: dict[str, Any] = {
            "block_size": 32,
            "head_dim": dim,
            "dtype": "float16",
            "kv_dtype": kv_dtype,
            "new_kv": "dense",
        }
        yield Case(op="extend", seqs=seqs, window=(left, -1), placement="shuffled", **_heads(*heads), **shape)


def _vllm_decode() -> Iterator[Case]:
    for batch, kv_len in product((3, 5), (1025, 1027)):
        shape: dict[str, Any] = {"head_dim": 128, "dtype": "bfloat16", "placement": "shuffled", "table_dtype": "int64"}
        yield Case(seqs=_equal(batch, 1, kv_len), **_heads(8, 2), **shape)


#: Theirs are the largest number over 64; so much is that of a few thousand normal ones.
VLLM_SCALE = 4.0 / 64


def _vllm_cache_write(kv_dtype: str) -> Iterator[Case]:
    scales = {} if kv_dtype == "same" else {"k_scale": VLLM_SCALE, "v_scale": VLLM_SCALE}
    for dim, size, layout, dtype in zip(
        (64, 80, 256, 64), (8, 16, 32, 16), ("nhd", "hnd", "nhd", "hnd"), ("bfloat16", "float32") * 2, strict=True
    ):
        shape: dict[str, Any] = {
            "head_dim": dim,
            "block_size": size,
            "layout": layout,
            "dtype": dtype,
            "kv_dtype": kv_dtype,
            **scales,
        }
        yield Case(
            op="cache_write", seqs=_seqs((42, 42)), placement="shuffled", spare_blocks=8, **_heads(8, 8), **shape
        )


def _vllm_merge() -> Iterator[Case]:
    for dtype, heads, dim in zip(("float32", "float16", "bfloat16"), (4, 8, 16), (32, 48, 128), strict=True):
        shape: dict[str, Any] = {"dtype": dtype, "head_dim": dim, "want_lse": True, "states": States(partition=(1, 1))}
        yield Case(op="merge", seqs=_seqs((256, 256)), **_heads(heads, heads), **shape)


def _sglang_decode() -> Iterator[Case]:
    for heads, dim in [((4, 4), 64), ((4, 2), 64), ((4, 4), 80), ((4, 4), 13)]:
        yield Case(seqs=_equal(2, 1, 10), dtype="bfloat16", head_dim=dim, block_size=1, **_heads(*heads))


def _sglang_extend() -> Iterator[Case]:
    seqs = _seqs((300, 520), (17, 411), (129, 130), (64, 600), (1, 77))
    for dim, left in zip((128, 96, 80, 13), (-1, 127, -1, 127), strict=True):
        shape: dict[str, Any] = {"dtype": "bfloat16", "head_dim": dim, "block_size": 1, "new_kv": "dense"}
        yield Case(op="extend", seqs=seqs, window=(left, -1), **_heads(6, 2), **shape)


def _sglang_cache_write() -> Iterator[Case]:
    for tokens in (16, 128, 512):
        shape: dict[str, Any] = {"head_dim": 128, "dtype": "bfloat16", "kv_dtype": "e4m3", "block_size": 1}
        scales: dict[str, Any] = {"k_scale": 0.5, "v_scale": 0.75}
        yield Case(
            op="cache_write", seqs=_seqs((tokens, tokens)), placement="shuffled", **_heads(8, 8), **shape, **scales
        )


def _flashinfer_decode() -> Iterator[Case]:
    for kv_len, size, dim in zip((54, 97, 512, 2048, 16384), (1, 8, 16, 1, 16), cycle([128, 256]), strict=False):
        batch = 12 if kv_len < 2048 else 2
        yield Case(seqs=_equal(batch, 1, kv_len), dtype="float16", head_dim=dim, block_size=size, **_heads(4, 4))


def _flashinfer_prefill() -> Iterator[Case]:
    lens = ((54, 37), (97, 17), (512, 127), (2048, 577))
    for (kv_len, query_len), size, causal in zip(lens, (1, 5, 16, 16), cycle([True, False]), strict=False):
        shape: dict[str, Any] = {"dtype": "float16", "head_dim": 128, "block_size": size, "causal": causal}
        yield Case(op="extend", seqs=_equal(4, query_len, kv_len), **_heads(4, 4), **shape)


#: Query and KV lengths of flash-attn's tests of its paged kernel, those of up to 2,048 keys; a row has its own length.
FLASH_LENS = (
    ((1, 128), (1, 97)),
    ((1, 339), (1, 211)),
    ((3, 1024), (3, 700)),
    ((64, 800), (64, 513)),
    ((128, 128),) * 2,
)


def _flash_attn(op: Op) -> Iterator[Case]:
    heads, dims = cycle([(6, 6), (6, 3), (6, 1)]), cycle([32, 59, 64, 80, 128])
    for pairs, (left, alibi) in product(FLASH_LENS, [(-1, False), (100, False), (-1, True)]):
        seqs = _seqs(*((1 if op == "decode" else query, kv) for query, kv in pairs))
        shape: dict[str, Any] = {
            "dtype": "float16",
            "head_dim": next(dims),
            "block_size": 256,
            "placement": "shuffled",
            "spare_blocks": 8,
        }
        yield Case(op=op, seqs=seqs, window=(left, -1), alibi=alibi, **_heads(*next(heads)), **shape)


def _flashinfer_append() -> Iterator[Case]:
    seqs = _seqs((45, 45), (8, 8), (25, 25), (22, 22))
    yield Case(op="cache_write", seqs=seqs, dtype="float16", head_dim=128, **_heads(4, 4))


FEWER = "heads and batch; every value of each axis, not every combination"
SHORT = FEWER + "; at most 456 keys of 2,048"
UNIFIED = "vLLM 0.33.0, test_triton_unified_attention.py"
PREFIX = "vLLM 0.33.0, test_prefix_prefill.py"
CACHE = "vLLM 0.33.0, test_cache.py"
SGLANG = "SGLang (00f6b51), test_triton_attention_kernels.py"
FLASHINFER = "FlashInfer (fb28d72)"
FLASH = "flash-attn (2026-08-15), test_flash_attn.py, test_flash_attn_kvcache"
TINY = Numbers("uniform", spread=1e-3, unused="zero")


def _named(name: str, source: str, cases: Iterator[Case], tolerance: Tolerance, **rest: Any) -> Recipe:
    return Recipe(name, source, tuple(cases), tolerance, **rest)


def _all() -> Iterator[Recipe]:
    ops: tuple[Op, ...] = ("decode", "extend", "step")
    for op in ops[:2]:
        close, loose = Tolerance(1.5e-2, 1e-2), Tolerance(0.15, 0.15)
        yield _named(f"vLLM unified, {op}", UNIFIED, _vllm_unified(op), close, reduced=FEWER)
        yield _named(f"vLLM unified FP8, {op}", UNIFIED, _vllm_unified(op, "e4m3"), loose, reduced=FEWER)
    prefix: dict[str, Any] = {"numbers": TINY, "reduced": SHORT}
    yield _named("vLLM prefix prefill", PREFIX, _vllm_prefix_prefill("same"), Tolerance(1e-4), **prefix)
    for fp8 in ("e4m3", "e5m2"):
        yield _named(f"vLLM prefix prefill {fp8}", PREFIX, _vllm_prefix_prefill(fp8), Tolerance(1e-3), **prefix)
    yield _named(
        "vLLM decode",
        "vLLM 0.33.0, test_triton_decode_attention.py",
        _vllm_decode(),
        Tolerance(1e-5, 1.6e-2),
        oracle="blocks of one",
        reduced="8 heads of 32; torch's tolerance for bf16, not equality: here a tile is a block",
    )
    yield _named("vLLM cache write", CACHE, _vllm_cache_write("same"), Tolerance(0.0), reduced=FEWER)
    yield _named("vLLM cache write FP8", CACHE, _vllm_cache_write("e4m3"), Tolerance(1e-3, 0.1), reduced=FEWER)
    yield _named(
        "vLLM merge",
        "vLLM (073c5a8), test_merge_attn_states.py",
        _vllm_merge(),
        Tolerance(1e-3, 1e-2),
        lse=True,
        reduced=FEWER + "; 256 tokens of 4,096",
    )
    yield _named("SGLang decode", SGLANG, _sglang_decode(), Tolerance(1e-2, 1e-2))
    yield _named(
        "SGLang extend",
        SGLANG,
        _sglang_extend(),
        Tolerance(1e-3, 1e-2),
        numbers=Numbers(mean=0.1, spread=0.2),
        reduced="5 sequences of 19, at most 600 keys of 6,165",
    )
    yield _named(
        "SGLang cache write FP8",
        "SGLang 0.5.23, test_fused_fp8_kv_write.py",
        _sglang_cache_write(),
        Tolerance(0.0, share=1e-3),
        numbers=Numbers(unused="zero"),
        reduced="512 tokens of 8,000; scales of 0.5 and 0.75, as SGLang's other FP8 writes are tested",
    )
    page, close = f"{FLASHINFER}, test_page.py", Tolerance(1e-3, 1e-3)
    decode, prefill = (f"{FLASHINFER}, test_batch_{name}_kernels.py" for name in ("decode", "prefill"))
    yield _named("FlashInfer decode", decode, _flashinfer_decode(), close, reduced=FEWER)
    yield _named("FlashInfer prefill", prefill, _flashinfer_prefill(), close, reduced=FEWER)
    yield _named("FlashInfer append", page, _flashinfer_append(), Tolerance(0.0), oracle="nothing")
    for op in ops:
        yield _named(f"flash-attn, {op}", FLASH, _flash_attn(op), Tolerance(1e-5, times=3.0), reduced=FEWER)


RECIPES = tuple(_all())


def recipes(op: str) -> tuple[Recipe, ...]:
    """Those for the operation; there is none for `gather`."""
    return tuple(recipe for recipe in RECIPES if recipe.op == op)
