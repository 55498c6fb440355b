"""The bound holds for NumPy kernels that err as much as their arithmetic allows, and is not far above them.

`python tests/test_bound_soundness.py --cases 20000` is the long run.
"""

import argparse
import sys
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds, margin, state_bound
from harness.platforms import Platform, platform

DTYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
VALUES = ("normal", "peaked", "flat", "large", "tiny", "cancelling", "constant", "positive", "ascending", "ties")
LOG2E = np.log2(np.e)


@dataclass(frozen=True)
class Machine:
    """Arithmetic that errs as far as a platform lets it.

    `lean` 0 rounds to nearest; 1 and -1 push every error of float32 to its limit, upwards or downwards; 2 draws signs.
    """

    platform: Platform
    lean: int
    rng: np.random.Generator

    def push(self, x, unit):
        """x with a relative error of `unit`."""
        sign = self.rng.choice([-1.0, 1.0], size=np.shape(x)) if self.lean == 2 else float(self.lean)
        return x * (1 + sign * unit)

    def flush(self, x):
        """Results that underflow vanish; rounding to float32 does the same to gradual ones."""
        return np.where(np.abs(x) < self.platform.eta, 0.0, x) if self.lean else x

    def fl(self, x, unit=None):
        """The float32 result of one operation, or of a function that errs by `unit`."""
        x = np.float64(x)
        return self.flush(self.push(x, unit or self.platform.unit)) if self.lean else np.float64(np.float32(x))

    def exp(self, x, base):
        """The exponential; exp is exp2 after one more multiplication, and of 0 it is exactly 1."""
        x = x if base == 2 else self.fl(x * self.fl(LOG2E))
        return np.where(x == 0, 1.0, self.fl(np.exp2(x), self.platform.eps_exp))

    def log(self, x):
        off = np.maximum(self.platform.eps_log * np.abs(np.log(x)), self.platform.eps_log_abs)
        return np.log(x) + self.lean * off / max(1, abs(self.lean)) if self.lean else self.fl(np.log(x))

    def tanh(self, x):
        off = self.platform.eps_tanh_abs * np.sign(self.lean)
        return self.fl(np.tanh(x), self.platform.eps_tanh) + off

    def div(self, x, y):
        return self.fl(x / y, self.platform.eps_div)

    def cast(self, x, dtype):
        """A value stored in `dtype`; bfloat16 is truncated where the platform does so."""
        if dtype == "float32":
            return x if self.lean else np.float64(np.float32(x))
        if dtype == "bfloat16" and self.platform.truncates_bf16:
            return np.float64((np.float32(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
        limit = float(ml_dtypes.finfo(DTYPES[dtype]).max) if dtype in ("e4m3", "e5m2") else np.inf
        return np.float64(np.clip(np.float32(x), -limit, limit).astype(DTYPES[dtype]))

    def tf32(self, x):
        """An operand of a TF32 dot: truncated to 10 bits."""
        if not self.platform.u_tf32:
            return x
        return np.float64((np.float32(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))

    def add_products(self, acc, x, y, accumulator, product, matrix):
        """acc + x @ y, x [rows, n], y [n, columns] or [rows, n, columns], in the order of n."""
        terms = x[:, :, None] * (y if y.ndim == 3 else y[None])
        if matrix and self.platform.dot_block:
            for start in range(0, terms.shape[1], self.platform.dot_block):
                acc = _truncating_add(acc, terms[:, start : start + self.platform.dot_block])
            return acc
        terms = self.cast(self.fl(terms), product) if product != "float32" else self.fl(terms)
        for j in range(terms.shape[1]):
            acc = self.sum(acc, terms[:, j], accumulator)
        return acc

    def times(self, x, y):
        """A product; by 1 it is exact."""
        return np.where(y == 1, x, self.fl(x * y))

    def sum(self, x, y, accumulator):
        if self.lean and accumulator == "float32":
            return np.where((x == 0) | (y == 0), x + y, self.fl(x + y))
        return self.cast(np.float32(x + y), accumulator) if accumulator != "float32" else self.fl(x + y)


def _truncating_add(acc, terms):
    """As a matrix unit adds: all aligned to the largest, what falls off the end is lost, the result is truncated."""
    every = np.concatenate([acc[:, None], terms], axis=1)
    largest = np.abs(every).max(axis=1, keepdims=True)
    quantum = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - 23)
    total = (np.trunc(every / quantum) * quantum).sum(axis=1)
    quantum = np.exp2(np.floor(np.log2(np.where(total == 0, 1.0, np.abs(total)))) - 23)
    return np.trunc(total / quantum) * quantum


@dataclass(frozen=True)
class Problem:
    """One sequence with one key-value head, and how a kernel goes about it."""

    q: np.ndarray  # [query_len, group, head_dim]
    k: np.ndarray  # [kv_len, 1, head_dim]; FP8 values before they are dequantised
    v: np.ndarray
    options: dict
    arithmetic: Arithmetic
    dtype: str
    k_scale: float
    v_scale: float
    base: int
    merge: str
    fault: str = ""

    def bound(self, machine):
        k, v = (x.astype(np.float64) * np.float64(s) for x, s in ((self.k, self.k_scale), (self.v, self.v_scale)))
        return attention_bound(
            self.q, k, v, **self.options, arithmetic=self.arithmetic, platform=machine.platform, out_dtype=self.dtype,
            k_scale=self.k_scale, v_scale=self.v_scale,
        )  # fmt: skip

    def rows(self, x):
        """One number per head as one per row (tokens times group)."""
        return np.tile(np.asarray(x, dtype=np.float64), len(self.q))


def simulate(problem, machine):
    """The output [query_len, group, head_dim_v] in its type and the lse [query_len, group] of a kernel."""
    shape = problem.q.shape[:2]
    scores = _copies(problem, machine)
    v = problem.v[:, 0].astype(np.float64)
    if problem.v_scale != 1:
        v = machine.cast(machine.fl(v * np.float64(np.float32(problem.v_scale))), problem.arithmetic.dequant_dtype)
    if problem.arithmetic.dot == "tf32":
        v = machine.tf32(v)
    run = _textbook if problem.arithmetic.normalised_p else _online
    out, lse = run(problem, machine, scores, v)
    out = machine.cast(out, problem.dtype) if problem.dtype != "float32" else np.float32(out)
    return out.reshape(*shape, -1).astype(DTYPES[problem.dtype]), lse.reshape(shape)


def _scores(problem, machine):
    """Scores [rows, kv_len] in the base of the exponential, -inf where a key is not seen."""
    a, options, fl = problem.arithmetic, problem.options, machine.fl
    scale = options["scale"] * {"scale 1 %": 1.01, "scale 0.1 %": 1.001}.get(problem.fault, 1.0)
    q, k = problem.q.astype(np.float64).reshape(-1, problem.q.shape[2]), problem.k[:, 0].astype(np.float64)
    if problem.k_scale != 1:
        k = machine.cast(fl(k * np.float64(np.float32(problem.k_scale))), a.dequant_dtype)
    if a.scaled_q_dtype != "float32":
        q, scale = machine.cast(fl(q * scale), a.scaled_q_dtype), 1.0
    if a.dot == "tf32":
        q, k = machine.tf32(q), machine.tf32(k)
    accumulator = "float16" if problem.fault == "q*k in fp16" else a.qk_accumulator
    keys = np.broadcast_to(k.T[None], (len(q), *k.T.shape))
    s = machine.add_products(np.zeros((len(q), len(k))), q, keys, accumulator, a.qk_product, a.tensor_core)
    s = machine.cast(s, a.score_dtype)
    slopes, cap = options["alibi_slopes"], options["softcap"]
    position = np.arange(len(k) - len(problem.q), len(k)).repeat(problem.q.shape[1])
    ahead = np.arange(len(k)) - position[:, None]
    if cap == 0 and slopes is None:
        s = fl(s * fl(scale * LOG2E)) if problem.base == 2 else fl(s * fl(scale))
    else:
        s = fl(s * fl(scale))
        s = fl(cap * machine.tanh(machine.div(s, cap))) if cap else s
        s = s if slopes is None else fl(s + fl(problem.rows(slopes)[:, None] * -np.abs(ahead)))
        s = fl(s * fl(LOG2E)) if problem.base == 2 else s
    left, right = options["window"]
    right = 0 if options["causal"] else right
    hidden = ((ahead > right) & (right >= 0)) | ((ahead < -left) & (left >= 0))
    s = np.where(hidden, -np.inf, s)
    if problem.fault == "last key dropped":
        s[np.arange(len(s)), np.where(hidden, -1, np.arange(len(k))).max(axis=1)] = -np.inf
    return s


def _sinks(problem, machine):
    sinks = problem.options["sinks"]
    if sinks is None:
        return None
    sinks = problem.rows(sinks)
    return machine.fl(sinks * machine.fl(LOG2E)) if problem.base == 2 else sinks


def _weights(problem, machine, scores, largest):
    shift = np.where(np.isneginf(largest), 0.0, largest)
    apart = machine.fl(np.where(np.isneginf(scores), 0.0, scores) - shift[:, None])
    apart = machine.cast(apart, problem.arithmetic.score_dtype)
    return np.where(np.isneginf(scores), 0.0, machine.exp(apart, problem.base))


def _decay(problem, machine, old, new):
    """exp(old - new), 0 if old is -inf."""
    gone = np.isneginf(old)
    return np.where(
        gone, 0.0, machine.exp(machine.fl(np.where(gone, 0.0, old - np.where(gone, 0.0, new))), problem.base)
    )


def _copies(problem, machine):
    """The scores, and for the numerator a copy: another evaluation, or one whose last product was fused."""
    scores = _scores(problem, machine)
    if not machine.platform.recomputes:
        return np.stack([scores, scores])
    if not problem.arithmetic.tensor_core:
        return np.stack([scores, _scores(problem, replace(machine, lean=2))])
    off = machine.rng.choice([-1.0, 0.0, 1.0], size=scores.shape) * machine.platform.unit
    return np.stack([scores, np.where(np.isneginf(scores), scores, scores * (1 + off))])


def _cast_p(problem, machine, p):
    a = problem.arithmetic
    dtype = {"p in bf16": "bfloat16", "p in fp8": "e4m3"}.get(problem.fault, a.p_dtype)
    return machine.cast(p * a.p_scale, dtype) / a.p_scale


def _part(problem, machine, scores, v, sinks):
    """Online softmax over one split: accumulator, normaliser and maximum of each row; scores [2, rows, keys]."""
    a = problem.arithmetic
    rows = scores.shape[1]
    acc, l, m = np.zeros((rows, v.shape[1])), np.zeros(rows), np.full(rows, -np.inf)
    if sinks is not None:
        l, m = np.ones(rows), sinks.copy()
    for start in range(0, scores.shape[2], a.tile_kv):
        (s, again), tile_v = scores[:, :, start : start + a.tile_kv], v[start : start + a.tile_kv]
        new = np.maximum(m, s.max(axis=1))
        decay, p = _decay(problem, machine, m, new), _weights(problem, machine, s, new)
        cast = _cast_p(problem, machine, p)
        acc = machine.cast(machine.times(acc, decay[:, None]), a.pv_accumulator)
        l = machine.cast(machine.times(l, decay), a.sum_accumulator)
        if problem.fault == "l not rescaled":
            l = np.where(decay > 0, l / np.where(decay > 0, decay, 1), l)
        for column in (cast if a.normaliser == "cast" else p).T:
            l = machine.sum(l, column, a.sum_accumulator)
        cast = _cast_p(problem, machine, _weights(problem, machine, again, new))
        operand = machine.tf32(cast) if a.dot == "tf32" else cast
        acc = machine.add_products(acc, operand, tile_v, a.pv_accumulator, a.pv_product, a.tensor_core)
        m = new
    return acc, l, m


def _online(problem, machine, scores, v):
    """Splits of whole tiles, each an online softmax, then combined with one of two usual conventions."""
    tiles = -(-scores.shape[2] // problem.arithmetic.tile_kv)
    per = -(-tiles // problem.arithmetic.max_splits) * problem.arithmetic.tile_kv
    sinks = _sinks(problem, machine)
    parts = [
        _part(problem, machine, scores[:, :, start : start + per], v[start : start + per], None if start else sinks)
        for start in range(0, scores.shape[2], per)
    ]
    if problem.fault == "extra zero key":
        acc, l, m = parts[-1]
        new = np.maximum(m, 0.0)
        decay = np.exp2(m - new)
        parts[-1] = acc * decay[:, None], l * decay + np.exp2(-new), new
    if problem.arithmetic.max_splits == 1:
        acc, l, m = parts[0]
        out = machine.div(acc, np.where(l == 0, 1.0, l)[:, None])
        return out, _lse(problem, machine, m, l)
    return _combined(problem, machine, parts)


def _lse(problem, machine, m, l):
    natural = m if problem.base != 2 else machine.fl(m * machine.fl(np.log(2)))
    empty = l == 0
    with np.errstate(invalid="ignore"):
        return np.where(empty, -np.inf, machine.fl(natural + machine.log(np.where(empty, 1.0, l))))


def _combined(problem, machine, parts):
    fl = machine.fl
    outs = [machine.cast(machine.div(acc, np.where(l == 0, 1.0, l)[:, None]), problem.arithmetic.partial_dtype)
            for acc, l, _ in parts]  # fmt: skip
    if problem.merge == "lse":
        logs, ls = [_lse(problem, machine, m, l) for _, l, m in parts], [np.ones(len(parts[0][1]))] * len(parts)
    else:
        logs, ls = [m for _, _, m in parts], [l for _, l, _ in parts]
    inner = replace(problem, base=problem.base if problem.merge != "lse" else 3)
    largest = np.max(logs, axis=0)
    scales = [_decay(inner, machine, log, largest) for log in logs]
    weights = scales if problem.fault == "merge forgets l" else [fl(x * l) for x, l in zip(scales, ls, strict=True)]
    total, out = np.zeros_like(largest), np.zeros_like(outs[0])
    for weight, part in zip(weights, outs, strict=True):
        total, out = fl(total + weight), fl(out + fl(weight[:, None] * part))
    return machine.div(out, np.where(total == 0, 1.0, total)[:, None]), _lse(inner, machine, largest, total)


def _textbook(problem, machine, scores, v):
    """All scores at once; the weights are normalised before they are cast and meet v."""
    a, sinks, (scores, copy) = problem.arithmetic, _sinks(problem, machine), scores
    m = scores.max(axis=1) if sinks is None else np.maximum(scores.max(axis=1), sinks)
    p = _weights(problem, machine, scores, m)
    l = np.zeros(len(m)) if sinks is None else _decay(problem, machine, sinks, m)
    for column in p.T:
        l = machine.sum(l, column, a.sum_accumulator)
    p = _weights(problem, machine, copy, m)
    p = machine.cast(machine.div(p, np.where(l == 0, 1.0, l)[:, None]), a.p_dtype)
    p = machine.tf32(p) if a.dot == "tf32" else p
    start = np.zeros((len(m), v.shape[1]))
    return machine.add_products(start, p, v, a.pv_accumulator, a.pv_product, a.tensor_core), _lse(
        problem, machine, m, l
    )


def values(rng, family, shape, dtype):
    """q, k and v of one family, [.., head_dim] each, exactly representable in their types."""
    (t, g, d), (n, dv) = shape[0], shape[1]
    q, k, v = rng.standard_normal((t, g, d)), rng.standard_normal((n, 1, d)), rng.standard_normal((n, 1, dv))
    q = q * {"peaked": 6, "large": 30, "tiny": 1e-3, "flat": 0.05}.get(family, 1)
    v = v * {"large": 100, "tiny": 1e-6}.get(family, 1)
    if family == "constant":
        v = np.broadcast_to(v[:1], v.shape)
    if family == "positive":
        v = np.abs(v)
    if family == "cancelling":
        v = v * np.resize([1.0, -1.0], n)[:, None, None] + 1000 * np.resize([1.0, -1.0], n)[:, None, None] * (
            n % 2 == 0
        )
    if family == "ascending":
        k = np.sort(k, axis=0)
        q = np.abs(q)
    if family == "ties":
        k = np.broadcast_to(k[:1], k.shape)
    return q, k, v


def draw(rng):
    """A random problem and machine."""
    plat = platform(rng.choice(["sm90", "sm90", "gridsim", "interpreter", "gfx942"]))
    dtype = rng.choice(["float32", "float16", "bfloat16"])
    t, g, n = int(rng.choice([1, 1, 3])), int(rng.choice([1, 2, 4])), int(rng.choice([1, 2, 3, 7, 16, 33, 64]))
    d, dv = int(rng.choice([4, 8, 16, 33])), int(rng.choice([4, 8]))
    if rng.random() < 0.03:
        n, d = int(rng.integers(65, 600)), 128
    family = str(rng.choice(VALUES))
    textbook = bool(rng.random() < 0.15)
    low = dtype if dtype != "float32" else "float16"
    narrow = bool(rng.random() < 0.15) and family not in ("large", "cancelling", "peaked")
    splits = 1 if textbook else int(rng.choice([1, 1, 2, 4]))
    matrix = bool(rng.random() < 0.5) and not narrow
    fp8 = bool(rng.random() < 0.15) and family not in ("large", "cancelling")
    sums = [str(x) for x in rng.choice(["float32", low], size=3)] if narrow else ["float32"] * 3
    arithmetic = Arithmetic(
        dot="tf32" if dtype == "float32" and matrix else "ieee", tensor_core=matrix,
        qk_accumulator=sums[0], qk_product=sums[0], pv_accumulator=sums[1], pv_product=sums[1], sum_accumulator=sums[2],
        scaled_q_dtype=dtype if rng.random() < 0.1 else "float32",
        score_dtype=low if rng.random() < 0.08 else "float32",
        p_dtype=str(rng.choice([dtype, dtype, "float32", "e4m3"] if plat.fp8_cast != "broken" else [dtype, "float32"])),
        normalised_p=textbook, normaliser=str(rng.choice(["uncast", "cast"])) if not textbook else "uncast",
        dequant_dtype=str(rng.choice([dtype, "float32"])), partial_dtype=dtype if rng.random() < 0.2 else "float32",
        p_scale=1.0 if textbook else float(rng.choice([1.0, 256.0])), tile_kv=int(rng.choice([1, 4, 16])),
        max_splits=splits, divisions=2 if splits > 1 else 1,
    )  # fmt: skip
    q, k, v = values(rng, family, ((t, g, d), (n, dv)), dtype)
    kv_type = DTYPES["e4m3"] if fp8 else DTYPES[dtype]
    window = (-1, -1) if rng.random() < 0.7 else (int(rng.integers(0, n + 1)), int(rng.choice([-1, 0, 2])))
    options = {
        "scale": float(rng.choice([d**-0.5, 1.0])),
        "causal": bool(rng.random() < 0.7),
        "window": window,
        "softcap": float(rng.choice([0, 0, 0, 5.0, 30.0])),
        "alibi_slopes": np.float32(rng.uniform(0, 2, g)) if rng.random() < 0.2 else None,
        "sinks": np.float32(rng.normal(0, 4, g) + rng.choice([0, 0, 100])) if rng.random() < 0.25 else None,
    }
    with np.errstate(over="ignore"):
        arrays = (q.astype(DTYPES[dtype]), np.clip(k, -400, 400).astype(kv_type), np.clip(v, -3e4, 3e4).astype(kv_type))
    k_scale, v_scale = (float(np.float32(rng.uniform(0.1, 2))) if fp8 else 1.0 for _ in range(2))
    problem = Problem(*arrays, options, arithmetic, str(dtype), k_scale, v_scale, int(rng.choice([2, 3])),
                      str(rng.choice(["lse", "ml"])))  # fmt: skip
    return problem, Machine(plat, int(rng.choice([0, 0, 1, -1, 2])), rng), family


def campaign(cases, seed=0):
    """Rows judged, violations (described), and the worst margin of out and lse per output type."""
    rows, bad, worst = 0, [], {}
    for i in range(cases):
        rng = np.random.default_rng((seed, i))
        problem, machine, family = draw(rng)
        with np.errstate(all="ignore"):
            out, lse = simulate(problem, machine)
        bound = problem.bound(machine)
        lse = lse if machine.lean else np.float32(lse)
        if np.any(exceeds(out, bound)) or np.any(exceeds(lse, bound.truth_lse, bound.lse)):
            worst_of = float(margin(out, bound).max()), float(margin(lse, bound.truth_lse, bound.lse).max())
            bad.append((i, worst_of, family, machine.lean, machine.platform.name, problem))
        rows += lse.size
        for key, value in (
            (problem.dtype, margin(out, bound)),
            (f"lse {problem.dtype}", margin(lse, bound.truth_lse, bound.lse)),
        ):
            worst[key] = max(worst.get(key, 0.0), float(value.max()))
    return rows, bad, worst


def merged(rng):
    """A merge of random states as a kernel computes it, with its bound: outputs, lse, bound."""
    machine = Machine(platform(rng.choice(["sm90", "gridsim"])), int(rng.choice([0, 1, -1, 2])), rng)
    shape, dtype = (int(rng.integers(1, 9)), 2, 3), str(rng.choice(["float32", "float16", "bfloat16"]))
    outs = (rng.standard_normal((*shape, 4)) + rng.choice([0, 100])).astype(DTYPES[dtype])
    lses = np.float32(rng.normal(0, rng.choice([1, 10, 100]), shape))
    lses[rng.random(shape) < 0.2] = -np.inf
    outs[np.isneginf(lses)] = np.nan if rng.random() < 0.5 else 0
    bound = state_bound(outs, lses, arithmetic=Arithmetic(), platform=machine.platform, out_dtype=dtype)
    problem = Problem(outs, outs, outs, {}, Arithmetic(), dtype, 1, 1, int(rng.choice([2, 3])), "lse")
    scores = lses.astype(np.float64).reshape(len(lses), -1)
    if problem.base == 2:
        scores = machine.fl(scores * machine.fl(LOG2E))
    parts = np.nan_to_num(outs.astype(np.float64)).reshape(len(lses), -1, 4)
    out, lse = _merged(problem, machine, scores, parts)
    return machine.cast(out, dtype).reshape(bound.truth.shape), lse.reshape(bound.lse.shape), bound, dtype


def _merged(problem, machine, scores, parts):
    fl, largest = machine.fl, scores.max(axis=0)
    weights = [_decay(problem, machine, score, largest) for score in scores]
    total, out = np.zeros_like(largest), np.zeros_like(parts[0])
    for weight, part in zip(weights, parts, strict=True):
        total, out = machine.sum(total, weight, "float32"), fl(out + fl(weight[:, None] * part))
    return machine.div(out, np.where(total == 0, 1.0, total)[:, None]), _lse(problem, machine, largest, total)


def test_no_kernel_breaks_the_bound_of_its_arithmetic():
    rows, bad, worst = campaign(3000)
    sys.stdout.write(f"{rows} rows, worst margins {worst}\n")
    assert not bad, bad[0]
    assert rows > 10_000
    # The last rounding alone takes up to half an ulp: a bound that is never nearly reached would be too wide.
    assert worst["float16"] > 0.9
    assert worst["bfloat16"] > 0.9
    assert worst["float32"] > 0.4
    assert min(worst[name] for name in worst if name.startswith("lse")) > 0.5


def test_no_merge_breaks_its_bound():
    worst = 0.0
    for seed in range(2000):
        out, lse, bound, dtype = merged(np.random.default_rng(seed))
        assert not exceeds(out, bound, dtype=dtype).any(), (seed, margin(out, bound, dtype=dtype).max())
        assert not exceeds(lse, bound.truth_lse, bound.lse).any(), seed
        worst = max(worst, float(margin(out, bound, dtype=dtype).max()))
    assert worst > 0.9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows, bad, worst = campaign(options.cases, options.seed)
    sys.stdout.write(f"{options.cases} cases, {rows} rows, {len(bad)} violations, worst margins {worst}\n")
    for *what, problem in bad[:5]:
        sys.stdout.write(
            f"{what} {problem.arithmetic} {problem.options} {problem.base} {problem.merge} {problem.k.shape}\n"
        )


if __name__ == "__main__":
    main()
