"""Reports: what a reader is told, from a summary alone."""

from harness.case import Case, Seq
from harness.profiles import FEATURES
from harness.report import declaration, finding_lines, first_line, in_words, ladder_verdict, summary_lines, verdict
from harness.results import Finding
from harness.summary import Found, Summary

WRONG = Finding(kind="accuracy", message="out is 1, but should be 0", accuses="the table", line="mine.py:7")
NAN = Finding(kind="not finite", message="out is nan")


def found(*needs: str, **fields) -> Found:
    plain = {"subject": "mine.py:f", "case": Case(), "finding": WRONG, "needs": needs, "again": "3 of 3"}
    return Found(**(plain | {"executor": "gridsim", "met": 4} | fields))


def report(**fields) -> str:
    plain = {"subjects": ("mine.py:f",), "executor": "gridsim", "cases": 9, "seconds": 3.0, "runs": 20}
    return "\n".join(summary_lines(Summary(**(plain | fields))))


def test_the_first_line_says_what_is_tested_where_and_how_long():
    assert first_line(("a", "b"), "gpu", 90.0) == "kvetch: a, b on gpu, 1.5 min"


def test_the_ladder_names_the_rungs_that_are_right():
    assert ladder_verdict({1: 10, 2: 5, 4: 3}, [found("GQA")]) == "right on rungs 1 and 2 (15 cases)"
    assert ladder_verdict({1: 10}, []) == "right on rung 1 (10 cases)"
    assert ladder_verdict({1: 10}, [found()]) == "right on no rung"
    assert ladder_verdict({}, []) == "nothing was judged"


def test_a_limit_is_named_with_its_line_and_the_declaration_that_states_it():
    text = report(passed={"mine.py:f": {1: 9}}, findings=(found("GQA"), found("float16", finding=NAN)))
    assert "  LIMIT: GQA: accuracy at mine.py:7" in text
    assert '@subject(op="decode", groups=(1,), dtypes=("float32", "bfloat16"))' in text
    assert "rung 4  GQA, odd sizes, strides          0 right, 1 limit found" in text


def test_no_declaration_is_proposed_when_a_fault_has_none():
    assert "@subject" not in report(findings=(found("GQA"), found()))
    assert declaration(("several sequences",)) == ""


def test_a_rung_without_cases_says_why():
    assert "rung 6  features                         not reached" in report()
    assert "no feature is declared" in report(not_drawn={"mine.py:f": FEATURES})


def test_a_finding_says_what_where_the_smallest_case_and_how_to_see_it_again():
    lines = list(finding_lines(found("GQA", others=(NAN,), file="corpus/x.json"), 2))
    assert lines == [
        "FINDING 2 (new): accuracy in mine.py:f, on gridsim",
        "  out is 1, but should be 0",
        "  accused: the table",
        "  line: mine.py:7",
        "  also: not finite: out is nan",
        "  smallest case: decode, 1 sequence of kv_len 1; 1 query and 1 KV heads of dim 16; block size 16; float32",
        "  needs: GQA; failed 3 of 3 when run again; met 4 times",
        "  again: python -m harness.replay corpus/x.json --subject mine.py:f --executor gridsim",
        "  look:  python -m harness.show corpus/x.json",
    ]


def test_what_explains_a_finding_is_told_under_it_and_a_line_that_is_named_already_is_not_told_twice():
    told = Finding(
        kind="accuracy", message="out is 1 at k.py:7", line="k.py:7", explains=("token 3 has weight 0", "so")
    )
    lines = list(finding_lines(found(finding=told, others=(told,)), 1))
    assert lines[1:4] == ["  out is 1 at k.py:7", "  explained: token 3 has weight 0", "  explained: so"]
    assert lines[4:6] == ["  also: accuracy: out is 1 at k.py:7", "    explained: token 3 has weight 0"]


def test_the_command_to_copy_is_quoted_for_a_shell():
    lines = list(finding_lines(found(subject="my kernels/k.py:f", file="a corpus/x.json"), 1))
    assert "harness.replay 'a corpus/x.json' --subject 'my kernels/k.py:f' --executor" in lines[-2]


def test_a_finding_of_an_interrupted_run_says_that_it_was_not_run_again():
    assert "not run again; met 4 times" in "\n".join(finding_lines(found(again=""), 1))


def test_a_case_in_words_tells_only_what_is_unusual():
    case = Case(seqs=(Seq(kv_len=3), Seq(kv_len=0, tag=1)), table_pad="huge")
    words = in_words(case)
    assert words.startswith("decode, 2 sequences of kv_len 3, 0; ")
    assert words.endswith("; float32; table_pad huge")


def test_the_verdict_is_the_last_line_and_counts_new_and_known():
    assert report().endswith("\nno new findings")
    assert report(findings=(found(),)).endswith("\n1 new finding")
    assert report(findings=(found(known="slow"),)).endswith("\nno new findings, 1 known")
    assert report(interrupted=True).endswith("\nno new findings (interrupted)")
    assert verdict(Summary()) == "nothing ran: no verdict"
    assert verdict(Summary(cases=1, harness_faults=("x",))).startswith("no verdict: the harness")


def test_what_was_drawn_is_a_line_a_field_with_numbers_in_order_and_0_for_an_empty_cell():
    drawn = {"block_size": {"16": 120, "1": 31, "256": 0, "8": 28}, "heads": {"12/4": 2, "2/1": 7}, "features": {}}
    lines = report(drawn=drawn | {"layout": {"nhd": 3, "hnd": 0}}).splitlines()
    at = lines.index("judged cases by what was drawn:")
    assert lines[at + 1 : at + 5] == [
        "  block_size: 1 31, 8 28, 16 120, 256 0",
        "  heads: 2/1 7, 12/4 2",
        "  layout: nhd 3, hnd 0",
        "",
    ]
    assert "judged cases by what was drawn" not in report()


def test_what_was_never_reached_in_the_source_is_told_and_long_lists_are_cut():
    row = {f"mine.py:{line} line run": 0 for line in range(20, 32)} | {"mine.py:7 line run": 3}
    text = report(reached={"mine.py:f": row | {"mine.py:7 mask mixed": 0, "mine.py:7 mask all": 3}})
    assert "mine.py:f: 1 of 13 lines of its kernels were run, with 1 of 2 ways of masks, branches and loops" in text
    assert "  line 20 of mine.py was never run\n" in text
    assert "  and 5 more; see --json" in text


def test_known_expired_declined_notes_and_faults_are_all_told():
    text = report(
        findings=(found(known="being mended"),),
        expired=("hang of mine.py:f was tolerated until 2020-01-01 (slow; ana)",),
        declined={"far blocks need 9 GiB": 2, "not built yet": 7},
        notes={"mine.py:f": ("q*k is summed in fp16",)},
        harness_faults=("sdpa disagrees",),
        restarts=3,
    )
    assert "FINDING 1 (known: being mended)" in text
    assert "EXPIRED in known.toml: hang of mine.py:f was tolerated until 2020-01-01 (slow; ana)" in text
    assert text.index("declined 7: not built yet") < text.index("declined 2: far blocks need 9 GiB")
    assert "  NOTE: q*k is summed in fp16" in text
    assert "FAULT OF THE HARNESS: sdpa disagrees" in text
    assert "3 workers replaced" in text
