"""Tables of what was measured: written whole, read strictly, and the committed ones are sound."""

import pytest

from harness.case import InvalidCase
from harness.platforms import Platform
from harness.tables import FOLDER, Measured, Table, read, save, tables, tell

FAILED = Measured(
    probe="exp2, relative", constant="eps_exp", assumed=1e-7, measured=2e-7, shows="exp2(1.5) is 3", verdict="FAILS"
)
TABLE = Table(
    platform="sm120", executor="gpu", hardware="a GPU", versions={"triton": "3.6.0"}, date="2026-11-30",
    command="python -m harness.doctor --executor gpu",
    probes=(FAILED, Measured(probe="weights", constant="recomputes", assumed=True, measured=False)),
)  # fmt: skip


def test_a_table_is_read_as_it_was_saved(tmp_path):
    save(TABLE, tmp_path / "mine.json")
    assert read(tmp_path / "mine.json") == TABLE
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_a_table_is_readable_a_field_a_line(tmp_path):
    save(TABLE, tmp_path / "mine.json")
    lines = (tmp_path / "mine.json").read_text().splitlines()
    assert ' "schema": 1,' in lines
    assert '   "measured": 2e-7,' in lines


def test_a_file_that_is_no_table_is_told_with_its_name(tmp_path):
    (tmp_path / "mine.json").write_text('{"platform": "sm120", "executor": "gpu", "probes": [{"probe": 3}]}')
    with pytest.raises(InvalidCase, match=r"mine\.json: Expected `str`, got `int` - at `\$\.probes\[0\]\.probe`"):
        read(tmp_path / "mine.json")


def test_only_the_tables_of_a_platform_are_its_tables(tmp_path):
    save(TABLE, tmp_path / "sm120-mine.json")
    assert [name for name, _ in tables("sm120", tmp_path)] == ["sm120-mine"]
    assert list(tables("sm90", tmp_path)) == []


def test_a_result_in_words_has_what_was_assumed_and_what_was_measured():
    assert tell(FAILED) == "eps_exp: exp2, relative: assumed 1e-07, measured 2e-07; exp2(1.5) is 3"
    reason = Measured(probe="p", constant="eta", verdict="could not be probed", reason="ValueError: no such type")
    assert tell(reason) == "eta: p: ValueError: no such type"


def test_the_committed_tables_can_be_read_and_name_their_hardware_and_constants():
    for path in FOLDER.glob("*.json"):
        table = read(path)
        assert table.hardware or table.executor == "gridsim", path
        assert path.stem.startswith(table.platform), path
        assert any(entry.constant in Platform.__dataclass_fields__ for entry in table.probes), path
