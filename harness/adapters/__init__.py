"""Other people's kernels as subjects, `PROJECT.KERNEL`: one small file per project, read when it is named.

An adapter's file is data plus one function per kernel, which calls the kernel with our inputs. It imports no torch at
its top, so that a supervisor may read what it declares, and loads nothing of its project until a subject is loaded.
"""

import importlib

from harness.adapters.adapter import Adapter
from harness.subjects import PROJECTS, Subject, WrongUse

__all__ = ["PROJECTS", "Adapter", "adapters", "find", "load"]


def adapters(project: str) -> dict[str, Adapter]:
    """The adapters of one project by the names of their subjects."""
    module = importlib.import_module(f"harness.adapters.{project}")
    found = (value for value in vars(module).values() if isinstance(value, Adapter))
    return {adapter.name: adapter for adapter in found if adapter.project.name == project}


def find(name: str) -> Adapter:
    """The adapter of that name; raises WrongUse naming those of its project."""
    known = adapters(name.partition(".")[0])
    if name not in known:
        raise WrongUse(f"subject {name!r}: there is no such adapter; of its project there are {', '.join(known)}")
    return known[name]


def load(name: str) -> Subject:
    """The subject of that name; raises WrongUse where its project is not installed or its adapter is out of date."""
    return find(name).subject()
