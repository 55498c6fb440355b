"""What this machine can run, each fact with what to do where something is missing."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.case import Record
from harness.commands import DEVICES, has_gpu
from harness.corpus import Corpus
from harness.running import journal_folder
from harness.tables import FOLDER


class Fact(Record, frozen=True):
    """One line: what, and what to do where it is missing."""

    what: str
    says: str
    missing: bool = False
    remedy: str = ""


def host(corpus: Path) -> Iterator[Fact]:
    """What can be told without torch."""
    yield Fact(what="python", says=f"{platform.python_version()} on {platform.system()}, {platform.machine()}")
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Fact(what="processor", says=f"{len(os.sched_getaffinity(0))} cores to use, {gibibytes:.0f} GiB of memory")
    yield _cache_folder()
    yield _corpus(corpus)
    names = sorted(path.stem for path in FOLDER.glob("*.json"))
    yield Fact(what="tables", says=f"measured tables: {', '.join(names) or 'none'}")


def _cache_folder() -> Fact:
    folder = journal_folder()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return Fact(what="cache", says=f"{folder} can be written to")
    remedy = "set XDG_CACHE_HOME to a folder that can be written to"
    return Fact(what="cache", says=f"{there} cannot be written to", missing=True, remedy=remedy)


def _corpus(folder: Path) -> Fact:
    if not folder.is_dir():
        remedy = "give --corpus; a campaign makes the folder when it finds something"
        return Fact(what="corpus", says=f"{folder} is not there", missing=True, remedy=remedy)
    return Fact(what="corpus", says=f"{sum(1 for _ in Corpus(folder).entries())} cases in {folder}")


def software() -> list[dict[str, Any]]:
    """What torch, triton and the device say; to be called in a worker."""
    makers = (_versions, _gpu, _sdpa, _flash_attn, _varlen)
    facts: list[dict[str, Any]] = msgspec.to_builtins([_made(maker) for maker in makers])
    return facts


def simulator() -> dict[str, Any]:
    """Whether gridsim runs here; to be called in a worker of its own."""
    fact: dict[str, Any] = msgspec.to_builtins(_made(_gridsim))
    return fact


def _made(maker: Any) -> Fact:
    """The fact; one that cannot be told says why."""
    try:
        fact: Fact = maker()
    except Exception as error:
        name = maker.__name__.strip("_")
        return Fact(what=name, says=f"{type(error).__name__}: {' '.join(str(error).split())}", missing=True)
    return fact


def _versions() -> Fact:
    import torch
    import triton

    return Fact(what="versions", says=f"torch {torch.__version__}, triton {triton.__version__}")


def hardware() -> str:
    """The GPU in words, or nothing; to be called in a worker."""
    import torch

    if not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(0)
    capability = f"capability {properties.major}.{properties.minor}"
    build = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    size = f"{properties.total_memory / 2**30:.0f} GiB"
    return f"{properties.name}, {capability}, {size}, {build}"


def _gpu() -> Fact:
    found = hardware()
    if found:
        return Fact(what="executor gpu", says=found)
    if has_gpu():
        remedy = "install a torch that is built for this GPU"
        return Fact(what="executor gpu", says="there is a driver, but torch finds no GPU", missing=True, remedy=remedy)
    says = f"no GPU: there is neither {' nor '.join(str(device) for device in DEVICES)}"
    return Fact(what="executor gpu", says=says, missing=True, remedy="none is needed: gridsim runs kernels on the CPU")


def _gridsim() -> Fact:
    from harness.executors import gridsim

    if complaint := gridsim.self_test():
        remedy = "install a Triton that the README names, or use --executor gpu"
        return Fact(what="executor gridsim", says=complaint, missing=True, remedy=remedy)
    return Fact(what="executor gridsim", says="its self-test is right")


def _sdpa() -> Fact:
    from harness.folders import load

    load("references", "sdpa")
    return Fact(what="witness sdpa", says="torch's scaled_dot_product_attention in float64, on the CPU")


def _flash_attn() -> Fact:
    if importlib.util.find_spec("flash_attn") is not None:
        return Fact(what="witness flash_attn", says="flash-attn is installed")
    remedy = "pip install flash-attn, on a machine with a CUDA GPU"
    return Fact(what="witness flash_attn", says="flash-attn is not installed", missing=True, remedy=remedy)


def _varlen() -> Fact:
    from harness.folders import load

    what = "witness varlen"
    if reason := load("references", "flash_attn").available():
        return Fact(what=what, says=reason, missing=True, remedy="torch 2.13 or newer, on a machine with a CUDA GPU")
    return Fact(what=what, says="flash attention can be asked, by flash-attn or by torch's varlen_attn")
