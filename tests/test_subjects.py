"""Subjects are found by name, declare themselves field by field, and decline what they do not do."""

from pathlib import Path
from typing import Any, get_args

import pytest
from attending import RAGGED, lens

from harness.case import Case, Hints, Op, Seq, States, replace
from harness.subjects import (
    SUBJECTS,
    Declaration,
    WrongUse,
    declare,
    declines,
    from_function,
    load,
    operation,
    subject,
)

FILE = """
from harness import subject

LIMIT = 3

@subject(op="decode", window=True, head_dims=(64, 128))
def mine(inputs):
    return inputs.q

def bare(inputs):
    return inputs.q
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels of mine.py"
    path.write_text(FILE)
    return path


def test_our_own_subject_is_found_by_its_name() -> None:
    found = load("ours.decode")
    assert (found.name, found.declaration.lse, found.validate is not None) == ("ours.decode", True, True)


def test_a_function_in_a_file_is_found_with_its_declaration(file: Path) -> None:
    found = load(f"{file}:mine")
    assert found.name == f"{file}:mine"
    assert found.declaration == Declaration(window=True, head_dims=(64, 128))
    assert found.validate is None
    assert load(f"{file}:mine").run is found.run


def test_a_bare_function_declares_no_feature(file: Path) -> None:
    assert load(f"{file}:bare").declaration == Declaration()


def test_a_decorated_function_stays_what_it_is() -> None:
    def run(inputs: Any) -> Any:
        return inputs

    assert subject(lse=True)(run) is run
    assert from_function(run).declaration.lse
    assert from_function(run).name.endswith("run")
    assert from_function(run, name="other").name == "other"


OURS = "ours.decode, ours.split_decode, ours.extend, ours.step, ours.cache_write, ours.gather, ours.merge"
WRONG = {
    "neither ours nor a file": ("decode", f"subject 'decode' is neither one of ours ({OURS}) nor FILE.py:FUNCTION"),
    "no function": ("{file}", f"is neither one of ours ({OURS}) nor FILE.py:FUNCTION"),
    "no such file": ("nowhere.py:f", "subject 'nowhere.py:f': there is no file nowhere.py"),
    "no such function": ("{file}:yours", "has no function 'yours'"),
    "not a function": ("{file}:LIMIT", "has no function 'LIMIT'"),
}


@pytest.mark.parametrize(("name", "message"), WRONG.values(), ids=WRONG)
def test_a_name_that_leads_nowhere_is_wrong_use_in_one_line(name: str, message: str, file: Path) -> None:
    with pytest.raises(WrongUse) as caught:
        load(name.format(file=file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:", "cannot be imported: SyntaxError: "),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("from harness import subject\n@subject(windows=True)\ndef f(i): ...", "has no declaration 'windows'"),
    ],
)
def test_a_file_that_does_not_import_is_wrong_use_and_may_be_mended(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(WrongUse) as caught:
        load(f"{path}:f")
    assert message in str(caught.value)
    path.write_text("def f(inputs): ...")
    assert load(f"{path}:f").declaration == Declaration()


def test_a_declaration_that_allows_nothing_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match=r"@subject: dtypes is \(\), but should name at least one"):
        subject(dtypes=())
    assert subject(promises=()) is not None


def test_an_unknown_declaration_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        WrongUse, match=r"@subject has no declaration 'windows'; there are: op, window, slid_out, softcap"
    ):
        declare(windows=True)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"window": 3}, "Expected `bool`, got `int` - at `$.window`"),
        ({"head_dims": 64}, "Expected `array | null`, got `int` - at `$.head_dims`"),
        ({"head_dims": ("64",)}, "Expected `int`, got `str` - at `$.head_dims[0]`"),
        ({"arithmetic": "tf32"}, "Expected `object | null`, got `str` - at `$.arithmetic`"),
    ],
)
def test_a_declaration_of_the_wrong_type_is_named_with_its_place(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongUse) as caught:
        declare(**declared)
    assert str(caught.value) == f"@subject: {message}"


FEATURES = {
    "window": {"window": (3, -1)},
    "softcap": {"softcap": 1.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "lse": {"want_lse": True},
    "out": {"out_layout": "given"},
    "non_causal": {"causal": False},
    "head_dim_v": {"head_dim_v": 32},
    "mla": {"v_is_k_prefix": True},
    "splits": {"hints": Hints(num_splits=2)},
}


@pytest.mark.parametrize(("name", "changes"), FEATURES.items(), ids=FEATURES)
def test_a_feature_is_declined_until_it_is_declared(name: str, changes: dict[str, Any]) -> None:
    case = replace(RAGGED, **changes)
    assert declines(declare(), case) == f"does not declare {name}"
    assert declines(declare(**{name: True}), case) is None


LIMITS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"dtypes": ("float16",)}, {}, "declares dtypes=('float16',)"),
    ({"head_dims": (64,)}, {}, "declares head_dims=(64,)"),
    ({"block_sizes": (32,)}, {}, "declares block_sizes=(32,)"),
    ({"groups": (1,)}, {}, "declares groups=(1,)"),
    ({"layouts": ("nhd",)}, {"v_layout": "hnd"}, "declares layouts=('nhd',)"),
    ({"q_layouts": ("contiguous",)}, {"q_layout": "fused_qkv"}, "declares q_layouts=('contiguous',)"),
    ({"placements": ("in_order",)}, {"placement": "far"}, "declares placements=('in_order',)"),
    ({"table_dtypes": ("int32",)}, {"table_dtype": "int64"}, "declares table_dtypes=('int32',)"),
    ({"empty_rows": False}, {"seqs": lens(0, 1)}, "declares empty_rows=False"),
    ({"shared_blocks": False}, {"seqs": (Seq(kv_len=16), Seq(kv_len=16, tag=1, shares_prefix_with=0, shared_blocks=1))},
     "declares shared_blocks=False"),
    ({"kv_strides_apart": False}, {"v_layout": "hnd"}, "declares kv_strides_apart=False"),
    ({"scales": False}, {"scale": 0.5}, "declares scales=False"),
    ({"max_kv_len": 19}, {}, "declares max_kv_len=19"),
    ({"finite_dead_slots": True}, {}, "needs finite_dead_slots"),
    ({"padded_table": True}, {}, "needs padded_table"),
    ({"op": "extend"}, {}, "it is a subject for extend, the case is for decode"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "changes", "reason"), LIMITS, ids=lambda part: next(iter(part), ""))
def test_a_limit_is_declined_only_where_it_is_declared(
    declared: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    case = replace(RAGGED, **changes)
    assert declines(declare(**declared), case) == reason
    assert declines(declare(), case) is None


def test_what_is_needed_is_met() -> None:
    finite = replace(RAGGED, k_poison="huge", v_poison="zero", spare_poison="huge")
    assert declines(declare(finite_dead_slots=True), finite) is None
    assert declines(declare(padded_table=True), replace(RAGGED, table_pad="other")) is None


def test_what_is_not_built_is_declined_by_name() -> None:
    case = Case(kv_dtype="float16")
    assert declines(declare(), case) == "a float16 cache under float32 queries is not built yet"


def test_dense_new_tokens_are_declined_until_they_are_declared() -> None:
    case = Case(op="extend", new_kv="dense")
    assert declines(declare(op="extend"), case) == "declares new_kv=('in_cache',)"
    assert declines(declare(op="extend", new_kv=("in_cache", "dense")), case) is None
    assert declines(declare(op="extend", new_kv=("dense",)), Case(op="extend")) == "declares new_kv=('dense',)"


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"op": "extend", "new_kv": ("append",)}, r"new_kv is \('append',\), but should be some of in_cache, dense"),
        ({"op": "extend", "new_kv": ()}, r"new_kv is \(\), but should be some of in_cache, dense for op 'extend'"),
        ({"op": "decode", "new_kv": ("dense",)}, r"new_kv is \('dense',\), but should be some of in_cache for op 'dec"),
    ],
)
def test_new_tokens_can_only_be_declared_where_an_operation_takes_them(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(WrongUse, match=told):
        declare(**declared)


def test_padding_rows_are_declined_until_they_are_declared_whatever_is_said_of_empty_rows() -> None:
    case = replace(RAGGED, padding_rows=2)
    assert declines(declare(), case) == "does not declare padding_rows"
    assert declines(declare(padding_rows=True, empty_rows=False), case) is None


def test_a_kernel_that_needs_finite_dead_slots_is_shown_finite_padding_rows() -> None:
    declared = declare(finite_dead_slots=True, padding_rows=True)
    finite = replace(RAGGED, k_poison="huge", v_poison="zero", spare_poison="huge")
    assert declines(declared, finite) is None
    assert declines(declared, replace(finite, padding_rows=1)) == "needs finite_dead_slots"
    assert declines(declared, replace(finite, padding_rows=1, row_poison="huge")) is None


def test_a_merge_that_needs_finite_dead_slots_is_shown_finite_empty_states() -> None:
    declared = declare(op="merge", lse=True, finite_dead_slots=True)
    merge = Case(op="merge", k_poison="huge", v_poison="huge", spare_poison="huge", want_lse=True)
    assert declines(declared, merge) is None
    empty = replace(merge, states=States(partition=(1, 1), empty=(0,)))
    assert declines(declared, empty) == "needs finite_dead_slots"
    assert declines(declared, replace(empty, row_poison="huge")) is None


def test_each_of_our_subjects_loads_and_its_name_tells_its_operation() -> None:
    for name in SUBJECTS:
        found = load(name)
        assert callable(found.run)
        assert found.declaration.op == operation(name)


@pytest.mark.parametrize("op", get_args(Op))
def test_every_operation_has_a_subject_of_ours_and_takes_its_own_cases_only(op: str) -> None:
    ours = [load(name) for name in SUBJECTS if operation(name) == op]
    assert ours
    for found in ours:
        assert found.declines(Case(op=op)) is None
        other = Case(op="gather" if op != "gather" else "merge")
        assert found.declines(other) == f"it is a subject for {op}, the case is for {other.op}"


def test_an_fp8_cache_is_declined_until_its_type_is_declared() -> None:
    case = Case(kv_dtype="e4m3", k_scale=2.0)
    assert declines(declare(), case) == "declares kv_dtypes=('same',)"
    assert declines(declare(kv_dtypes=("same", "e5m2")), case) == "declares kv_dtypes=('same', 'e5m2')"
    assert declines(declare(kv_dtypes=("same", "e4m3")), case) is None
