"""`harness.new`: a kernel to start from, an empty one, and a function of somebody's as a subject."""

import ast
import json
from pathlib import Path

import pytest
import wrapping
from click.testing import CliRunner, Result
from invoked import one_line
from mistaken import STARTERS, naive

from harness import check, new
from harness.__main__ import main as kvetch
from harness.fields import FIELDS
from harness.subjects import Declaration, declare, load
from harness.synonyms import NAMES, meanings

OPS = ("decode", "extend", "cache_write", "step", "gather", "merge")


def run(*arguments: object, answers: str = "") -> Result:
    return CliRunner().invoke(new.main, [str(argument) for argument in arguments], input=answers)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "my.py").write_text(wrapping.THEIRS)
    return tmp_path / "my.py"


# --- a kernel to start from --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_a_starter_is_written_as_it_is_with_the_command_to_run_next(tmp_path: Path, op: str) -> None:
    file = tmp_path / "new" / "my_kernel.py"
    result = run(file, "--op", op)
    assert result.exit_code == 0
    assert file.read_text() == naive(op)
    assert result.stdout.splitlines()[1] == f"next: python -m harness.fuzz --minutes 1 --subject {file}:{op}"


@pytest.mark.parametrize("op", OPS)
def test_a_starter_is_right_as_it_is(op: str) -> None:
    check(load(f"{STARTERS / op}.py:{op}").run, cases=40, seed=3, executor="gridsim")


@pytest.mark.parametrize("op", OPS)
def test_every_line_that_a_declaration_offers_is_one_that_can_be_declared(op: str) -> None:
    text = naive(op)
    declared = text[text.index("@subject(") : text.index(f"def {op}(")].splitlines()[1:-1]
    offered = [line.strip().removeprefix("# ") for line in declared]
    offered = [line for line in offered if line.partition("=")[0] in Declaration.__struct_fields__]
    assert len(offered) > 6 or op == "gather"
    for line in offered:
        call = ast.parse(f"declare({line.partition('  #')[0].rstrip(',')})", mode="eval").body
        options = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        assert declare(**({"op": op} | options)).op == op


def test_the_kernels_of_a_step_are_those_of_its_two_halves() -> None:
    for op in ("cache_write", "extend"):
        text = naive(op)
        assert text[text.index("@triton.jit") : text.index("@subject(")] in naive("step")


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "my_kernel.py"
    file.write_text("mine")
    assert "is there already, and is not overwritten" in one_line(run(file))
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "FILE is missing: expected the name of the file to write"),
        (("kernel.txt",), "FILE is 'kernel.txt', but expected a name that ends in .py"),
        (("k.py", "--op", "attend"), "'attend' is not one of 'decode'"),
        (("k.py", "--map", "q=q"), "--map is 'q=q', but expected --wrap beside it"),
        (("--wrap", "nothing"), "--wrap is 'nothing', but expected FILE.py:FUNCTION"),
        (("--wrap", "nowhere.py:f"), "a Python file is expected at nowhere.py, but there is no such file"),
        (("--wrap", "my.py:f", "--empty"), "--empty leaves the body of a new kernel out, but --wrap is given"),
    ],
)
def test_wrong_use_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in one_line(run(*arguments))
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_verb() -> None:
    assert "my_kernel.py" in CliRunner().invoke(kvetch, ["new"]).stderr


# --- what is not written yet -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_an_empty_starter_says_that_it_is_not_written_yet_and_nothing_else(commands, tmp_path: Path, op: str) -> None:
    file = tmp_path / f"{op}_kernel.py"
    assert run(file, "--op", op, "--empty").exit_code == 0
    assert "tl.load" not in file.read_text()
    result = commands("fuzz", "--subject", f"{file}:{op}", "--corpus", tmp_path / "corpus", "--minutes", 1)
    assert result.exit_code == 5
    told = f"not written yet ({file.name}:{len(file.read_text().splitlines())}): the launch is still to be written"
    assert f"{file}:{op}: {told}" in result.stdout
    assert result.stdout.splitlines()[-1] == "not written yet: no verdict"
    assert len(result.stdout.splitlines()) < 8
    with pytest.raises(AssertionError, match="not written yet"):
        check(load(f"{file}:{op}").run, cases=20, seed=1, executor="gridsim")


def test_a_kernel_that_raises_is_not_written_yet_either(commands, tmp_path: Path) -> None:
    file, text = tmp_path / "my_kernel.py", naive()
    body = text[text.index("    seq = tl.program_id(0)") : text.index("@subject(")]
    file.write_text(text.replace(body, "    raise NotImplementedError\n\n\n"))
    result = commands("fuzz", "--subject", f"{file}:decode", "--corpus", tmp_path, "--minutes", 1)
    assert result.exit_code == 5
    assert f"{file}:decode: not written yet (my_kernel.py:" in result.stdout
    file.write_text(text.replace(body, "    raise ValueError\n\n\n"))
    commands.renew()
    result = commands("fuzz", "--subject", f"{file}:decode", "--corpus", tmp_path, "--minutes", 1, "--max-cases", 5)
    assert result.exit_code == 1
    assert "unsupported AST node type: Raise" in result.stdout


def test_a_subject_that_is_written_is_judged_beside_one_that_is_not(commands, tmp_path: Path) -> None:
    unwritten, right = commands.subject("not_written"), commands.subject("right")
    both = ("--subject", unwritten, "--subject", right)
    result = commands("fuzz", *both, "--corpus", tmp_path, "--minutes", 1, "--max-cases", 60, "--json")
    summary = json.loads(result.stdout)
    assert (summary["exit_code"], set(summary["not_written"])) == (0, {unwritten})
    assert sum(summary["declined"].values()) < 60
    assert set(summary["passed"]) == {right}


def test_a_subject_that_lacks_only_some_cases_goes_on_being_asked(commands, tmp_path: Path) -> None:
    file = tmp_path / "partly.py"
    head = "    if inputs.q.shape[1] > 1:\n        raise NotImplementedError\n"
    text = naive().replace("    q, k, v, table = inputs.q", f"{head}    q, k, v, table = inputs.q")
    file.write_text(text)
    result = commands("fuzz", "--subject", f"{file}:decode", "--corpus", tmp_path, "--minutes", 1, "--max-cases", 30)
    assert result.exit_code == 0
    assert "not written yet (partly.py:" in result.stdout
    assert "no new findings" in result.stdout


# --- a function of somebody's ------------------------------------------------------------------------------------

#: What has to be said of each, and the operation that is drawn.
WRAPPED: dict[str, tuple[tuple[str, ...], str]] = {
    "paged_attention": ((), "decode"),
    "one_cache": (("kv_cache=kv_stacked",), "decode"),
    "turned": (("kv_cache=kv_interleaved",), "decode"),
    "by_slots": (
        ("k_buffer=k_slots", "v_buffer=v_slots", "kv_indptr=slot_starts", "kv_indices=slot_ids", "BLOCK=64"), "decode",
    ),
    "by_pages": (("kv_indptr=block_starts", "kv_indices=block_ids"), "decode"),
    "varlen": ((), "extend"),
    "store_kvcache": ((), "cache_write"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_a_function_becomes_a_subject_that_is_right_without_being_run_by_the_command(theirs: Path, name: str) -> None:
    said, op = WRAPPED[name]
    options = [word for pair in said for word in ("--map", pair)]
    result = run("--wrap", f"{theirs}:{name}", *options)
    assert result.exit_code == 0, result.stderr
    assert not theirs.with_name("my.py.ran").exists()
    wrapped = theirs.with_name("my_wrapped.py")
    assert result.stdout.splitlines()[-1].endswith(f"--subject {wrapped}:{name}")
    subject = load(f"{wrapped}:{name}")
    assert subject.declaration.op == op
    check(subject.run, cases=25, seed=2, executor="gridsim")


def test_what_a_wrong_guess_leads_to_is_found(theirs: Path) -> None:
    """The guess that the file holds is a declaration like any other: a wrong one is no silent pass."""
    assert run("--wrap", f"{theirs}:turned", "--map", "kv_cache=kv_stacked").exit_code == 0
    with pytest.raises(AssertionError, match="FINDING"):
        check(load(f"{theirs.with_name('my_wrapped.py')}:turned").run, cases=25, seed=2, executor="gridsim")


def test_doubts_are_listed_in_one_message_where_nobody_is_asked(theirs: Path) -> None:
    told = one_line(run("--wrap", f"{theirs}:puzzling"))
    assert "sliding_window may be window_left (keys before the query" in told
    assert "or window_tokens (keys up to the query" in told
    assert "mystery is no name that is known" in told
    assert "say which with --map sliding_window=window_left --map mystery=FIELD, or with a Python literal" in told
    assert "FIELD is one of q, k_cache" in told
    assert not theirs.with_name("my_wrapped.py").exists()


def test_doubts_are_asked_one_by_one_at_a_terminal(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "is_asked", lambda: True)
    result = run("--wrap", f"{theirs}:puzzling", answers="nonsense\nwindow_tokens\nblock_size\n")
    assert result.exit_code == 0, result.output
    text = theirs.with_name("my_wrapped.py").read_text()
    assert "sliding_window=inputs.window[0] + 1," in text
    assert "mystery=inputs.k_cache.shape[1]," in text
    assert "window=True," in text


def test_what_keeps_its_default_is_told(theirs: Path) -> None:
    result = run("--wrap", f"{theirs}:paged_attention")
    assert "num_warps keeps its default" in result.stdout
    assert "# num_warps keeps its default" in theirs.with_name("my_wrapped.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("{}:kernel",), "kernel of {} is a kernel, but expected the function that launches it"),
        (("{}:nobody",), "{} has no function 'nobody'; there are: attend, rows, paged_attention"),
        (("{}:attend", "--map", "x=q"), "--map x=q: {}:attend has no parameter 'x'; there are: q, k, v, scale"),
        (("{}:attend", "--map", "q=queries"), "--map q=queries: expected a Python literal or one of q, k_cache"),
        (("{}:attend", "--map", "q"), "--map is 'q', but expected NAME=FIELD"),
        (("{}:rows",), "what {}:rows does is not told by its parameters: give --op"),
    ],
)
def test_a_function_that_cannot_be_wrapped_is_one_line(theirs: Path, arguments: tuple[str, ...], told: str) -> None:
    assert told.format(theirs) in one_line(run("--wrap", *(argument.format(theirs) for argument in arguments)))


def test_the_file_lies_beside_what_it_imports(theirs: Path, tmp_path: Path) -> None:
    told = one_line(run(tmp_path / "elsewhere" / "w.py", "--wrap", f"{theirs}:paged_attention"))
    assert f"expected a place beside {theirs}, which it imports" in told


def test_a_left_side_alone_is_not_drawn_with_a_right_one(theirs: Path) -> None:
    theirs.write_text("def f(q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, causal, window_left): ...")
    assert run("--wrap", f"{theirs}:f").exit_code == 0
    text = theirs.with_name("my_wrapped.py").read_text()
    assert "window=True" in text
    assert "non_causal" not in text
    assert "scales=False" in text


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xa3\x00")
    assert "bytes.py: 'utf-8' codec can't decode byte 0xa3" in one_line(run("--wrap", f"{tmp_path}/bytes.py:f"))


def test_a_function_that_is_called_like_its_file_is_the_one_that_is_run(theirs: Path) -> None:
    file = theirs.rename(theirs.with_name("paged_attention.py"))
    assert run("--wrap", f"{file}:paged_attention").exit_code == 0
    subject = load(f"{file.with_name('paged_attention_wrapped.py')}:paged_attention")
    check(subject.run, cases=10, seed=2, executor="gridsim")


@pytest.mark.parametrize("name", ["my-kernel", "class"])
def test_a_file_that_no_import_can_name_is_one_line(theirs: Path, name: str) -> None:
    file = theirs.rename(theirs.with_name(f"{name}.py"))
    assert f"{name!r} cannot be imported: expected a name such as 'my_kernel'" in one_line(
        run("--wrap", f"{file}:rows")
    )


#: A decode in which two names mean the same.
TWICE = "def f(q, k_cache, v_cache, block_table, seq_lens, context_lens, scale): ..."


def test_two_names_of_one_field_are_asked_and_not_unknown(theirs: Path) -> None:
    theirs.write_text(TWICE)
    told = one_line(run("--wrap", f"{theirs}:f"))
    words = "may be kv_lens (tokens of each sequence, the new ones included [seqs]), and so may"
    assert f"seq_lens {words} context_lens; context_lens {words} seq_lens: say which" in told
    assert "FIELD is one of q, k_cache" in told
    said = ("--map", "seq_lens=kv_lens")
    assert f"context_lens {words} seq_lens: say which" in one_line(run("--wrap", f"{theirs}:f", *said))
    assert run("--wrap", f"{theirs}:f", *said, "--map", "context_lens=kv_lens").exit_code == 0
    text = theirs.with_name("my_wrapped.py").read_text()
    assert "seq_lens=inputs.kv_lens,\n        context_lens=inputs.kv_lens," in text


def test_two_names_of_one_field_may_be_any_field_at_a_terminal(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "is_asked", lambda: True)
    theirs.write_text(TWICE)
    assert run("--wrap", f"{theirs}:f", answers="kv_lens\nmax_kv_len\n").exit_code == 0
    assert "context_lens=inputs.max_kv_len," in theirs.with_name("my_wrapped.py").read_text()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            ("scale=slot_mapping",),
            "--map scale=slot_mapping: slot_mapping is of cache_write, step, but the function is",
        ),
        (("scale=1.0", "scale=2.0"), "--map scale is '1.0' and '2.0', but expected one meaning"),
    ],
)
def test_what_cannot_be_meant_is_one_line(theirs: Path, said: tuple[str, ...], told: str) -> None:
    theirs.write_text("def f(q, k_cache, v_cache, block_table, seq_lens, scale): ...")
    assert told in one_line(run("--wrap", f"{theirs}:f", *(word for pair in said for word in ("--map", pair))))
    assert not theirs.with_name("my_wrapped.py").exists()


# --- names -------------------------------------------------------------------------------------------------------


def test_every_field_that_a_name_may_mean_is_there_and_declares_what_can_be_declared() -> None:
    assert set(NAMES) <= set(FIELDS)
    for field in FIELDS.values():
        declare(**field.declares)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("block_table", ("block_tables",)),
        ("block_tables_ptr", ("block_tables",)),
        ("Query", ("q",)),
        ("sm_scale", ("scale",)),
        ("req_to_token", ("block_tables", "slot_tables")),
        ("kv_cache", ("kv_stacked", "kv_interleaved")),
        ("cache_seqlens", ("kv_lens", "prefix_lens")),
        ("mystery", ()),
    ],
)
def test_a_name_means_the_fields_that_projects_use_it_for(name: str, fields: tuple[str, ...]) -> None:
    assert meanings(name) == fields
