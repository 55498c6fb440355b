"""Shared by all tests: GPU and browser tests run where there is one, nightly and thirdparty ones when asked for."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "browser")]
# Each xdist worker and each subject's worker has a core of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hypothesis also draws numbers that stand in the source of the modules that are loaded: a test alone would draw other
# cases than it does in the whole suite.
providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(config, items):
    from browsing import is_there

    chosen, gpu = config.getoption("-m"), Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
    for mark, present in (("gpu", gpu), ("browser", is_there()), ("nightly", False), ("thirdparty", False)):
        if mark not in chosen and not present:
            deselected = [item for item in items if item.get_closest_marker(mark)]
            items[:] = [item for item in items if item not in deselected]
            config.hook.pytest_deselected(items=deselected)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The verbs, run on one worker for the whole module."""
    from invoked import Commands

    shared = Commands(tmp_path_factory.mktemp("commands"))
    yield shared
    shared.close()
