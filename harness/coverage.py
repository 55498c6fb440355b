"""Coverage of what is drawn: judged cases by field and value, where what could be drawn but was not shows as 0."""

from collections.abc import Iterable, Iterator

from harness.case import NEW_TOKENS, Case
from harness.profiles import JOINT_LAYOUTS, LONGEST_CHUNK, Profile, whole_profile
from harness.subjects import Declaration, features

#: Field to value to judged cases.
Drawn = dict[str, dict[str, int]]

#: Fields of a case that are counted by their value, and where a profile keeps the options.
_OPTIONS = {
    "op": "op",
    "dtype": "dtypes",
    "kv_dtype": "kv_dtypes",
    "new_kv": "new_kv",
    "block_size": "block_sizes",
    "head_dim": "head_dims",
    "layout": "layouts",
    "q_layout": "q_layouts",
    "placement": "placements",
    "table_pad": "table_pads",
    "table_dtype": "table_dtypes",
    "values": "values",
    "k_poison": "poisons",
    "v_poison": "poisons",
    "spare_poison": "poisons",
}
#: New tokens of a sequence, in bins that part at the edges of a tile of queries: name to first length.
_CHUNKS = {
    "0": 0, "1": 1, "2-14": 2, "15": 15, "16": 16, "17": 17, "18-30": 18, "31": 31, "32": 32, "33": 33, "34-62": 34,
    "63": 63, "64": 64, "65": 65, "66+": 66,
}  # fmt: skip


def undrawn(declarations: Iterable[Declaration]) -> Drawn:
    """Every option of the subjects' profiles, nothing of it drawn so far."""
    table: Drawn = {}
    for declared in declarations:
        for field, options in _could_be(whole_profile(declared)).items():
            table[field] = table.get(field, {}) | dict.fromkeys(options, 0)
    return table


def _could_be(whole: Profile) -> dict[str, list[str]]:
    options = {field: [str(option) for option in _many(getattr(whole, name))] for field, name in _OPTIONS.items()}
    apart = set(whole.layouts) - set(JOINT_LAYOUTS)
    chunks = {"query_len": _chunks(whole)} if whole.op in NEW_TOKENS else {}
    return (
        options
        | chunks
        | {
            "heads": [f"{q}/{kv}" for q, kv in whole.heads],
            "v_layout": list(whole.v_layouts) if apart else ["same"],
            "out_layout": _outputs(whole),
            "features": [*whole.features, *(name for name in ("slid_out", "splits") if getattr(whole, name))],
            "config": [str(number) for number in range(whole.configs)],
        }
    )


def _outputs(whole: Profile) -> list[str]:
    far = ["far"] if "far" in whole.q_layouts else []
    return ["allocated", "given", "padded", *far] if "out" in whole.features else ["allocated"]


def _chunks(whole: Profile) -> list[str]:
    least = 0 if whole.op == "extend" and whole.empty_rows else 1
    return [name for name, first in _CHUNKS.items() if least <= first <= min(LONGEST_CHUNK, whole.max_kv_len)]


def _many(options: object) -> tuple[object, ...]:
    return options if isinstance(options, tuple) else (options,)


def count(table: Drawn, case: Case) -> None:
    """Add one judged case to the table."""
    for field, value in _cells(case):
        row = table.setdefault(field, {})
        row[value] = row.get(value, 0) + 1


def _cells(case: Case) -> Iterator[tuple[str, str]]:
    for field in (*_OPTIONS, "v_layout", "out_layout"):
        yield field, str(getattr(case, field))
    yield "config", str(case.hints.config)
    yield "heads", f"{case.num_q_heads}/{case.num_kv_heads}"
    if case.op in NEW_TOKENS:
        yield from (("query_len", name) for name in dict.fromkeys(_chunk(seq.query_len) for seq in case.seqs))
    yield from (("features", name) for name, is_on in features(case).items() if is_on)


def _chunk(query_len: int) -> str:
    """The bin of a length."""
    return max((name for name, first in _CHUNKS.items() if first <= query_len), key=_CHUNKS.__getitem__)


def lines(table: Drawn) -> Iterator[str]:
    """A line a field: each value with its count."""
    for field, row in table.items():
        if row:
            yield f"{field}: {', '.join(f'{value} {number}' for value, number in ordered(row))}"


def ordered(row: dict[str, int]) -> list[tuple[str, int]]:
    """Values with their counts, numbers in ascending order."""
    values = list(row.items())
    if not all(part.isdigit() for value in row for part in value.split("/")):
        return values
    return sorted(values, key=lambda item: [int(part) for part in item[0].split("/")])
