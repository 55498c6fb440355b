"""What the gate writes: one outcome in four forms, two of which have a schema."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
import xmlschema
from parsed import parse

from harness import gate_page, gate_report, junit, markdown, sarif
from harness.builds import Build, Worse
from harness.case import Case, Seq
from harness.outcome import Clocked, Gate, Gated, Narrowing, Rebuilt, Shift, Tally, Verdict, exit_code
from harness.paired import verdict as timed
from harness.pictures import Picture
from harness.results import Finding
from harness.summary import Found

SCHEMAS = Path(__file__).parent / "schemas"
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")
SARIF = jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.4.json").read_text()))

ALWAYS, NEVER = Tally(failed=20, runs=20), Tally(failed=0, runs=20)


def found(kind="accuracy", message="out is 2, but should be 1", **fields):
    finding = Finding(kind=kind, message=message, explains=("token 4 has weight 0",), line="decode.py:84")
    return Found(subject="mine.py:f", case=Case(seqs=(Seq(kv_len=5),)), finding=finding, needs=("GQA",), **fields)


def shift(**fields):
    plain = {
        "subject": "mine.py:f", "configuration": "bfloat16, splits", "cases": 30, "changed": 12,
        "errors_before": (0.2, 0.5, 0.6), "errors_now": (0.5, 1.2, 1.4), "margin_before": 0.25, "margin_now": 0.5,
    }  # fmt: skip
    return Shift(**(plain | fields))


FULL = Gate(
    base="0123456789abcdef", head="f" * 40, executor="gridsim", seconds=63.0,
    versions={"change": {"triton": "3.9.0"}, "base": {"triton": "3.6.0"}},
    gated=(
        Gated(
            subject="mine.py:f", because=("kernels/decode.py",), files=("kernels/decode.py", "mine.py"), asked=600,
            ran=412, judged=400, kept=3, declined={"does not declare window": 12}, seconds=61.0, digest="abc",
            verdicts=(
                Verdict(word="NEW", found=found(file="f/x.json", executor="gridsim"), change=ALWAYS, base=NEVER),
                Verdict(word="FLAKY ON THE CHANGE", found=found("race"), change=Tally(failed=3, runs=20), base=NEVER),
                Verdict(word="PRE-EXISTING", found=found("hang"), change=ALWAYS, base=ALWAYS),
                Verdict(word="KNOWN", found=found("crash", known="being mended")),
                Verdict(word="PLATFORM", found=found("platform")),
            ),
            shifts=(shift(), shift(configuration="float32", lost=True, coarser=29), shift(lost=True, accepted="meant")),
        ),
    ),
    narrowings=(
        Narrowing(subject="mine.py:f", field="empty_rows", words="83 of 600 cases no longer run", cases=83),
        Narrowing(subject="mine.py:f", field="dtypes", words="w", accepted="it never had any"),
    ),
    stale=("[[accept]] x of y: there is nothing to acknowledge",),
)  # fmt: skip
BUILD = Build("kernel", "decode.py:64", "gfx942", "SIZE=16", ("case 3 launch 1",))
BUILT = Gate(
    base="0" * 40, head="f" * 40, executor="gridsim",
    gated=(
        Gated(
            subject="mine.py:f", files=("kernels/decode.py", "mine.py"), asked=9, ran=9, judged=9,
            rebuilt=Rebuilt(
                targets=("sm_80", "gfx942"), seed=7, counts="3 compile, 2 do not fit", notes=("case 5 raised",),
                worse=(
                    Worse(kind="no longer compiles", build=BUILD, message="no (decode.py:84)", fails=True),
                    Worse(kind="no longer fits", build=BUILD, message="70000 bytes", fails=True),
                    Worse(kind="spills", build=BUILD, message="4 words a thread spilled, base 0"),
                ),
            ),
            clocked=Clocked(
                times=(
                    timed("decode-8x8k-16", [1.0] * 20, [1.1] * 20),
                    timed("decode-1x8k-16", [1.0] * 20, [1.0] * 20),
                ),
                notes=("decode-ragged-64 is not timed: the base: declares block_sizes=(16,)",),
            ),
        ),
    ),
)  # fmt: skip
GREEN = Gate(base="0" * 40, head="f" * 40, executor="gpu", gated=(Gated(subject="a.py:f", asked=9, ran=9, judged=9),))
FAULTY = msgspec.structs.replace(GREEN, harness_faults=("sdpa has 1, float64 has 2",))
UNTOUCHED = Gate(base="0" * 40, head="f" * 40, executor="gpu", untouched=("a.py:f",))
#: What XML, JSON, HTML and Markdown could each trip over.
HOSTILE = "a | b `c` ``` <script>alert(1)</script> & \x00\x1b[31m ]]> \N{GREEK SMALL LETTER ALPHA}\n# title"
NASTY = msgspec.structs.replace(
    FULL,
    gated=(
        msgspec.structs.replace(
            FULL.gated[0],
            verdicts=(Verdict(word="NEW", found=found(message=HOSTILE), change=ALWAYS, base=NEVER, note=HOSTILE),),
            rebuilt=Rebuilt(
                worse=(
                    Worse(kind="does not compile", build=BUILD, message=HOSTILE, fails=True),
                    Worse(kind="spills", build=BUILD, message=HOSTILE),
                ),
                notes=(HOSTILE,),
            ),
            clocked=Clocked(times=(timed(HOSTILE, [1.0] * 9, [2.0] * 9),), notes=(HOSTILE,), missing=HOSTILE),
        ),
    ),
    narrowings=(Narrowing(subject=HOSTILE, field=HOSTILE, words=HOSTILE),),
    harness_faults=(HOSTILE,),
)
OUTCOMES = {"full": FULL, "built": BUILT, "green": GREEN, "faulty": FAULTY, "untouched": UNTOUCHED, "nasty": NASTY}
each = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)


# --- the schemas --------------------------------------------------------------------------------------------------


@each
def test_junit_is_valid(outcome):
    JUNIT.validate(junit.text(outcome))


@each
def test_sarif_is_valid(outcome):
    SARIF.validate(json.loads(sarif.text(outcome)))


def test_the_schemas_refuse_what_is_none():
    assert not JUNIT.is_valid("<testsuites><testsuite/></testsuites>")
    assert not SARIF.is_valid({"version": "2.1.0", "runs": [{}]})
    wrong = json.loads(sarif.text(FULL))
    wrong["runs"][0]["results"][0]["level"] = "fatal"
    assert not SARIF.is_valid(wrong)


# --- JUnit --------------------------------------------------------------------------------------------------------


def test_in_junit_what_fails_is_a_failure_and_what_does_not_is_skipped_with_its_reason():
    suites = JUNIT.to_dict(junit.text(FULL))["testsuite"]
    assert [(suite["@name"], suite["@tests"]) for suite in suites] == [("mine.py:f", "9"), ("kvetch", "2")]
    first = suites[0]
    assert (first["@failures"], first["@errors"], first["@skipped"]) == ("3", "1", "3")
    text = junit.text(FULL)
    assert 'type="NEW"' in text
    assert "KNOWN: being mended: out is 2, but should be 1" in text
    assert 'message="cut at 412 of 600"' in text


# --- SARIF --------------------------------------------------------------------------------------------------------


def sarif_results(outcome):
    return json.loads(sarif.text(outcome))["runs"][0]["results"]


def test_in_sarif_a_new_finding_is_an_error_at_the_line_of_the_kernel_and_what_does_not_fail_is_a_note():
    results = sarif_results(FULL)
    assert [result["level"] for result in results] == ["error"] * 2 + ["note"] * 3 + ["error", "note"] * 2
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "kernels/decode.py"
    assert place["region"] == {"startLine": 84}
    assert results[0]["ruleId"] == "accuracy"
    assert "token 4 has weight 0" in results[0]["message"]["text"]
    assert results[0]["partialFingerprints"] == {"kvetch/v1": "mine.py:f wrong output GQA"}


def test_a_line_that_nobody_knows_is_the_file_of_the_subject():
    gated = FULL.gated[0]
    assert sarif.place(gated, "") == ("mine.py", 1)
    assert sarif.place(gated, "elsewhere.py:3") == ("mine.py", 1)
    twice = msgspec.structs.replace(gated, files=("a/decode.py", "b/decode.py"))
    assert sarif.place(twice, "decode.py:84") == ("mine.py", 1)


# --- Markdown and text --------------------------------------------------------------------------------------------


def test_the_summary_begins_with_the_verdict_and_has_a_row_for_each_finding():
    text = markdown.text(FULL)
    assert text.startswith("## Kvetch: red\n\nRED: 2 new findings, 1 unacknowledged narrowing, 1 loss of accuracy; ")
    assert "| **NEW** | accuracy: out is 2, but should be 1 | 20 of 20 | 0 of 20 | 1 |" in text
    assert "| **KNOWN** | crash: out is 2, but should be 1 | being mended | - | 1 |" in text
    assert "| bfloat16, splits | 12 of 30 | 0.2 → 0.5 | 0.5 → 1.2 | 0.6 → 1.4 | 0.25 → 0.50 |  |" in text
    assert 'add to kvetch.toml: [[accept]] subject = "mine.py:f", field = "empty_rows"' in text
    assert markdown.text(GREEN).startswith("## Kvetch: green\n\ngreen: nothing new. Base `000000000000`, gpu")


def test_what_a_kernel_says_is_neither_html_nor_a_table_nor_a_fence_of_its_own():
    text = markdown.text(NASTY)
    assert "<script>" not in text.replace("````\n", "\0").split("\0")[0]
    (row,) = [line for line in text.splitlines() if line.startswith("| **NEW**")]
    assert row.replace(r"\|", "").count("|") == 6
    assert "\n````\n" in text


def test_the_last_line_is_the_verdict():
    last = {name: list(gate_report.lines(outcome))[-1] for name, outcome in OUTCOMES.items()}
    assert last["full"].startswith(
        "RED: 2 new findings, 1 unacknowledged narrowing, 1 loss of accuracy; mine.py:f: cut"
    )
    assert last["green"] == "green: nothing new"
    assert last["untouched"] == "green: the change touches none of a.py:f"
    assert last["faulty"].startswith("no verdict")
    nothing = msgspec.structs.replace(GREEN, gated=(Gated(subject="a.py:f", asked=9, ran=9),))
    assert list(gate_report.lines(nothing))[-1] == "nothing ran: no verdict"


def test_the_report_says_how_often_on_which_side_and_how_to_see_it_again():
    text = "\n".join(gate_report.lines(FULL))
    assert "NEW: failed 20 of 20 times on the change, 0 of 20 on the base" in text
    assert "FLAKY ON THE CHANGE: failed 3 of 20 times on the change, 0 of 20 on the base" in text
    assert "again: python -m harness.replay f/x.json --subject mine.py:f --executor gridsim" in text
    assert "bfloat16, splits  12 of 30; 0.2 -> 0.5, 0.5 -> 1.2, 0.6 -> 1.4; 0.25 -> 0.50" in text
    assert "LESS ACCURATE: the median error more than doubled in 29 of 30 cases" in text
    assert "NOTE: triton is 3.9.0 for the change and 3.6.0 for the base" in text


# --- builds and speed ---------------------------------------------------------------------------------------------


def accepting(**fields):
    """BUILT, with reasons."""
    (gated,) = BUILT.gated
    rebuilt = msgspec.structs.replace(gated.rebuilt, accepted=fields.get("compile", ""))
    clocked = msgspec.structs.replace(gated.clocked, accepted=fields.get("speed", ""))
    return msgspec.structs.replace(BUILT, gated=(msgspec.structs.replace(gated, rebuilt=rebuilt, clocked=clocked),))


def test_what_cannot_be_launched_and_what_is_slower_is_red_until_it_is_acknowledged():
    assert BUILT.reasons == ("2 builds that cannot be launched", "1 slower workload")
    assert accepting(compile="meant").reasons == ("1 slower workload",)
    assert accepting(speed="meant").reasons == ("2 builds that cannot be launched",)
    assert [exit_code(gate) for gate in (BUILT, accepting(compile="meant", speed="meant"))] == [1, 0]


@pytest.mark.parametrize(
    "part", [{"rebuilt": Rebuilt(missing="not compiled: it died")}, {"clocked": Clocked(missing="m")}]
)
def test_what_could_not_be_compiled_or_timed_is_not_green(part):
    gate = msgspec.structs.replace(GREEN, gated=(msgspec.structs.replace(GREEN.gated[0], **part),))
    assert exit_code(gate) == 5
    assert list(gate_report.lines(gate))[-1].startswith("not green: not all of it was run; a.py:f: ")


def test_in_text_builds_are_told_with_the_command_and_workloads_with_their_ratio():
    text = "\n".join(gate_report.lines(BUILT))
    assert "compiled for sm_80, gfx942: 3 compile, 2 do not fit" in text
    assert "CANNOT BE LAUNCHED: kernel (decode.py:64) on gfx942, no longer fits: 70000 bytes; SIZE=16" in text
    assert "again: python -m harness.compiles --subject mine.py:f --seed 7 --case 3 --targets gfx942" in text
    assert "TAKES MORE: kernel (decode.py:64) on gfx942, spills: 4 words a thread spilled, base 0" in text
    assert "SLOWER: decode-8x8k-16: slower by 10 % (10 to 10), 1.100 ms, base 1.000 ms" in text
    assert "    decode-1x8k-16: no difference seen (x1.000, 1.000 to 1.000)" in text
    for field in ("compile", "speed"):
        assert f'add to kvetch.toml: [[accept]] subject = "mine.py:f", field = "{field}"' in text
    assert "ACKNOWLEDGED: kernel" in "\n".join(gate_report.lines(accepting(compile="meant")))


def test_in_junit_each_build_that_cannot_be_launched_and_each_slower_workload_is_a_failure():
    (suite,) = JUNIT.to_dict(junit.text(BUILT))["testsuite"]
    assert (suite["@failures"], suite["@errors"], suite["@skipped"]) == ("3", "0", "1")
    text = junit.text(BUILT)
    assert 'type="no longer fits"' in text
    assert 'type="slower"' in text
    assert "spills: 4 words a thread spilled, base 0" in text
    assert "no difference seen (x1.000, 1.000 to 1.000)" in text
    (suite,) = JUNIT.to_dict(junit.text(accepting(compile="meant", speed="meant")))["testsuite"]
    assert suite["@failures"] == "0"


def test_in_sarif_a_build_is_at_the_line_that_the_compiler_names_else_where_its_kernel_begins():
    results = sarif_results(BUILT)
    places = [result["locations"][0]["physicalLocation"] for result in results]
    told = [(place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in places]
    assert told == [("kernels/decode.py", 84), ("kernels/decode.py", 64), ("kernels/decode.py", 64), ("mine.py", 1)]
    assert [result["level"] for result in results] == ["error", "error", "note", "error"]
    assert [result["ruleId"] for result in results] == ["no-longer-compiles", "no-longer-fits", "spills", "slower"]
    accepted = sarif_results(accepting(compile="meant", speed="meant"))
    assert {result["level"] for result in accepted} == {"note"}


def test_the_summary_has_a_table_of_builds_and_one_of_workloads():
    text = markdown.text(BUILT)
    assert "Compiled for sm_80, gfx942: 3 compile, 2 do not fit." in text
    assert (
        "| kernel (decode.py:64) | gfx942 | spills | 4 words a thread spilled, base 0 | SIZE=16 | TAKES MORE |" in text
    )
    assert "| decode-8x8k-16 | 1.100 | 1.100 to 1.100 | 1.100 | 1.000 | SLOWER: if that is meant" in text
    assert "| decode-1x8k-16 | 1.000 | 1.000 to 1.000 | 1.000 | 1.000 | no difference seen |" in text


# --- the page -----------------------------------------------------------------------------------------------------


def paged(outcome):
    return parse(gate_page.of_gate(outcome, [Picture(notes=(f"picture {i}",)) for i in range(len(outcome.verdicts))]))


def part(tree, name):
    (found,) = [section for section in tree.all("section") if section["id"] == name]
    return found


@each
def test_on_the_page_nothing_that_a_kernel_says_is_html_and_no_name_is_given_twice(outcome):
    tree = paged(outcome)
    assert not tree.all("script")
    names = [node["id"] for node in tree.walk() if "id" in node.attributes]
    assert len(names) == len(set(names))


def test_the_page_of_a_red_gate_has_what_fails_first_with_its_numbers_on_both_sides():
    tree = paged(FULL)
    assert tree.one("header").one("p", "verdict").text.startswith("RED: 2 new findings")
    names = [section["id"] for section in tree.all("section")]
    assert names == ["at-a-glance", "verdicts", "findings", "no-longer-tested", "accuracy"]
    rows = [[cell.text for cell in row.all("td")] for row in part(tree, "verdicts").one("tbody").all("tr")]
    assert [row[0] for row in rows] == ["NEW", "FLAKY ON THE CHANGE", "PRE-EXISTING", "KNOWN", "PLATFORM"]
    assert rows[1][3:] == ["3 of 20", "0 of 20", "1"]
    assert [cell.text for cell in part(tree, "verdicts").all("td", "wrong")] == ["NEW", "FLAKY ON THE CHANGE"]
    articles = part(tree, "findings").all("article")
    assert articles[0].one("p", "verdict").text == "NEW: failed 20 of 20 times on the change, 0 of 20 on the base"
    assert [f"picture {i}" in article.text for i, article in enumerate(articles)] == [True] * 5
    assert "triton is 3.9.0 for the change and 3.6.0 for the base" in part(tree, "at-a-glance").text
    shown = [[cell.text for cell in row.all("td")] for row in part(tree, "accuracy").one("tbody").all("tr")]
    assert shown[0][:5] == ["mine.py:f", "bfloat16, splits", "12 of 30", "0.2 → 0.5", "0.5 → 1.2"]
    assert len(part(tree, "accuracy").all("td", "wrong")) == 1
    assert len(part(tree, "no-longer-tested").all("td", "wrong")) == 1


def test_the_page_has_builds_and_workloads_and_marks_what_is_red():
    tree = paged(BUILT)
    assert [row.all("td")[3].text for row in part(tree, "builds").one("tbody").all("tr")] == [
        "no longer compiles", "no longer fits", "spills"
    ]  # fmt: skip
    assert len(part(tree, "builds").all("td", "wrong")) == 2
    assert [row.all("td")[2].text for row in part(tree, "speed").one("tbody").all("tr")] == ["1.100", "1.000"]
    assert len(part(tree, "speed").all("td", "wrong")) == 1
    assert "case 5 raised" in part(tree, "at-a-glance").text


def test_the_page_of_a_green_gate_says_so_and_has_nothing_red():
    tree = paged(GREEN)
    assert tree.one("header").one("p", "verdict").text == "green: nothing new"
    assert [section["id"] for section in tree.all("section")] == ["at-a-glance"]
    assert not tree.all("td", "wrong")
