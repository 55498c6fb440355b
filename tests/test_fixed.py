"""The fixed Cases of a gate."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from harness.fixed import digest_of, fixed_cases, seed_of, shard_of
from harness.subjects import Declaration, declines
from harness.traits import rung, traits

ROOT = Path(__file__).parent.parent
WIDE = Declaration()
NARROW = Declaration(dtypes=("float32",), head_dims=(16,), block_sizes=(16,), groups=(1,))


def test_they_are_so_many_all_different_and_within_the_declaration():
    cases = fixed_cases(NARROW, 7, 100)
    assert len(cases) == len(set(cases)) == 100
    assert not any(declines(NARROW, case) for case in cases)


def test_the_seed_decides_and_a_longer_list_begins_with_the_shorter_one():
    cases = fixed_cases(NARROW, 7, 90)
    assert fixed_cases(NARROW, 7, 90) == cases
    assert fixed_cases(NARROW, 7, 30) == cases[:30]
    assert fixed_cases(NARROW, 8, 90) != cases
    assert len({seed_of(base, subject) for base in "ab" for subject in "cd"}) == 4


def test_modules_that_happen_to_be_loaded_decide_nothing(tmp_path, monkeypatch):
    numbers = ", ".join(str(number) for number in range(2, 700))
    (tmp_path / "local_numbers.py").write_text(f"NUMBERS = ({numbers})\n")
    cases = fixed_cases(WIDE, 7, 60)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("local_numbers")
    assert fixed_cases(WIDE, 7, 60) == cases
    code = "from harness.fixed import *; from test_fixed import WIDE; print(digest_of(fixed_cases(WIDE, 7, 60)))"
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == digest_of(cases), done.stderr


def test_every_rung_is_there():
    wide = Declaration(window=True, softcap=True, lse=True)
    assert {rung(traits(case)) for case in fixed_cases(wide, 3, 300)} == {1, 2, 3, 4, 5, 6}


def test_shards_share_the_cases_out():
    cases = fixed_cases(NARROW, 7, 20)
    shards = [shard_of(cases, part, 3) for part in (1, 2, 3)]
    assert [len(shard) for shard in shards] == [7, 7, 6]
    assert set().union(*shards) == set(cases)
    assert digest_of(cases) == digest_of(list(cases)) != digest_of(shards[0])
