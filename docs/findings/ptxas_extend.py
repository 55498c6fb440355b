"""Triton 3.6.0 with its own ptxas 12.8 for sm_90: a right kernel gives wrong results, or reads where nothing is.

python docs/findings/ptxas_extend.py    needs a Hopper; another ptxas is tried where `nvcc` is on the PATH
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))
from extend import paged_extend

KV_LEN, BLOCK, HEADS, DIM, DIM_V, K_SCALE = 65, 16, 3, 64, 32, 0.25
LAUNCHES = ({}, {"num_stages": 1}, {"num_warps": 8}, {"tile_q": 16})


def call(**launch: int) -> str:
    """The largest error of each of four calls with the same tensors."""
    torch.manual_seed(0)
    cache = torch.randn(4, BLOCK, 1, DIM, device="cuda").to(torch.float8_e4m3fn)
    half = {"dtype": torch.float16, "device": "cuda"}
    q, k_new, v_new = (
        torch.randn(1, HEADS, DIM, **half),
        torch.randn(1, 1, DIM, **half),
        torch.randn(1, 1, DIM_V, **half),
    )
    integers = {"dtype": torch.int32, "device": "cuda"}
    slopes, scale = torch.tensor([0.5, 0.25, 0.125], device="cuda"), torch.tensor([K_SCALE], device="cuda")
    k = torch.cat([cache.double().reshape(-1, DIM) * K_SCALE, k_new[0].double()])
    v = torch.cat([cache.double()[..., :DIM_V].reshape(-1, DIM_V) * K_SCALE, v_new[0].double()])
    distance = KV_LEN - 1 - torch.arange(KV_LEN, device="cuda")
    scores = q[0].double() @ k.T / DIM**0.5 - slopes.double()[:, None] * distance
    errors = []
    for _ in range(4):
        out, _ = paged_extend(
            q, cache, cache[..., :DIM_V], torch.arange(4, **integers)[None], torch.tensor([0, 1], **integers),
            torch.tensor([KV_LEN], **integers), k_new=k_new, v_new=v_new, alibi_slopes=slopes, k_scale=scale,
            v_scale=scale, return_lse=True, max_query_len=1, **launch,
        )  # fmt: skip
        errors.append(f"{(out[0].double() - scores.softmax(1) @ v).abs().max():.1e}")
    return ", ".join(errors)


def in_a_process(name: str, setting: dict[str, str], number: int) -> None:
    """With a cache of its own, since what was compiled under other settings may be taken from it."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | setting | {"TRITON_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, __file__, str(number)], env=environ, capture_output=True, text=True)
    said = [
        line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("0", "1", "2", "torch.Acc", "n"))
    ]
    print(f"{name}, {LAUNCHES[number] or 'its own choice'}: {said[-1] if said else done.stderr[-200:]}", flush=True)


if len(sys.argv) > 1:
    print(call(**LAUNCHES[int(sys.argv[1])]))
else:
    settings = {"ptxas of Triton": {}, "without optimising": {"DISABLE_PTXAS_OPT": "1"}}
    if shutil.which("nvcc"):
        settings["ptxas beside nvcc"] = {"TRITON_PTXAS_PATH": str(Path(shutil.which("nvcc")).parent / "ptxas")}
    for name, setting in settings.items():
        for number in range(len(LAUNCHES)):
            in_a_process(name, setting, number)
