"""Every planted fault is named, in words that its kernel's author would use, by the finding on its smallest case."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from planted import PLANTED, Planted, plant
from planted_operations import PLANTED_OPERATIONS

from harness.corpus import Corpus, Entry
from harness.pool import Worker
from harness.results import Result

ALL = (*PLANTED, *PLANTED_OPERATIONS)
CORPUS = Path(__file__).parents[1] / "corpus"
#: Seconds for what hangs, and for everything else.
HANGS, SECONDS = 2.0, 60.0

#: What has to be in the message, in what is accused or in what explains the finding.
WORDS: dict[str, tuple[str, ...]] = {
    "last-token-dropped": (
        "token 0 (column 0 of the table, block 0, slot 0) has weight 0: the last of what the query",
    ),
    "window-off-by-one": ("token 0 ", " outside the window, which begins with token 1"),
    "group-by-modulo": ("head 2: attends to KV head 0, but should to KV head 1",),
    "k-strides-for-v": ("V is read with the strides of K",),
    "l-not-rescaled": (
        "the normaliser is not rescaled when the maximum moves",
        "counts the tiles before",
        "of 16 keys",
    ),
    "offset-in-32-bits": ("does not fit in 32 bits", "an index that is not made 64 bits wide"),
    "table-padding-used": ("only the padding of the table names that block: the loop over blocks goes one too far",),
    "stale-v-times-zero": ("V of slots behind the last token", "a weight of 0, and 0 times NaN is NaN"),
    "empty-row-nan": ("sequence 0 has no key: its weights sum to 0, and 0 is divided by that sum",),
    "scale-off-by-one-per-cent": ("scores are 1.01 times as far apart", "the scale"),
    "one-scale-for-all-rows": ("rows that are nobody's, such as a graph's padding", "they are computed with"),
    "raises": ("KeyError at decode.py:", "no tile for block_size 24"),
    "dies": ("SIGSEGV", "in paged_decode at "),
    "hangs": ("No answer for ", "in paged_decode at "),
    "rows-behind-a-block-lost": ("row 15 (token 16, block 1 offset 0) holds zeros: nothing was loaded",),
    "causal-top-left": ("token 1 ", "as if the query stood at position 0, not 1: a causal mask aligned top-left"),
    "past-counted-twice": ("token 2 ", "after the query's own position 1, beyond the causal limit"),
    "slot-minus-one-written": ("K of a token to be skipped, whose slot is -1: such a token is written all the same",),
    "slot-in-32-bits": ("does not fit in 32 bits", "an index that is not made 64 bits wide"),
    "k-strides-for-v-written": ("it is V of the token for block 0 offset 1", "the strides of the write are wrong"),
    "empty-split-weighs-one": ("as if 3 more keys of score 0 and without a value were summed", "an empty split"),
    "merged-in-base-two": ("powers of 2, but should be of e: a natural logarithm taken for one in base 2",),
    "all-states-empty-nan": ("every state is empty: their weights sum to 0, and 0 is divided by that sum",),
    "v-scale-dropped": ("off by the common factor 0.5: the scale of V, 2, is not multiplied in",),
    "padding-row-writes": ("K of a token to be skipped, whose slot is -1: such a token is written all the same",),
    "query-offset-of-the-sequence-before": ("the output is that of sequence 1", "the offset of the queries"),
    "window-start-inside-a-block": ("token 1 ", "has weight 0: the first key of the window"),
    "new-rows-by-position": (
        "token 1 (row 0 of v_new) has weight 0: a dense new token that is not read where it lies",
    ),
    "prefix-read-over": ("slot 1 of block 0 has weight ", "but that is behind the last token"),
    "k-strides-for-new-v": ("V is read with wrong strides",),
    "new-k-scaled": ("the scale of the cached K on the new K as well",),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("gridsim") as shared:
        yield shared


def smallest(planted: Planted) -> Entry:
    """What a campaign shrank the fault to."""
    slug = planted.subject.replace("_", "-")
    folder = CORPUS / ("decode" if planted.subject == "split_decode" else planted.subject)
    (found,) = (
        entry for path, entry in Corpus(folder).entries() if path.name.startswith(f"ours-{slug}-{planted.name}-")
    )
    return found


def told(result: Result) -> str:
    """All that the findings say."""
    lines = [line for f in result.findings for line in (f.message, f.accuses, *f.explains)]
    return "\n".join(lines)


@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.name)
def test_the_finding_names_the_fault(planted: Planted, worker: Worker, tmp_path: Path) -> None:
    entry, limit = smallest(planted), HANGS if planted.expects == "hang" else SECONDS
    result = worker.run(entry.case, plant(planted, tmp_path), limit, thorough=True, explain=True)
    assert (result.harness_fault, result.declined) == ("", "")
    for words in WORDS[planted.name]:
        assert words in told(result), told(result)


def test_a_right_kernel_is_said_nothing_of_on_the_same_cases(worker: Worker) -> None:
    for planted in ALL:
        entry = smallest(planted)
        result = worker.run(entry.case, f"ours.{planted.subject}", SECONDS, thorough=True, explain=True)
        assert (planted.name, result.findings) == (planted.name, ())
