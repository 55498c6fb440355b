"""The part of a source in which something happened, found through the locations of the IR."""

import pytest

from harness.excerpt import MOST_LINES, excerpt

SOURCE = "import x\n\n\n@jit\ndef kernel(a):\n    b = a\n    return b\n\n\nafter = 1\n"


@pytest.fixture
def ir(tmp_path):
    """TTIR that names a file with this source."""

    def write(source, name="kernel.py"):
        (tmp_path / name).write_text(source)
        return (f'#loc = loc("{tmp_path}/other.py":1:0)\n#loc1 = loc("{tmp_path}/{name}":6:4)\n',)

    return write


def test_the_function_round_the_line_is_shown_with_its_lines_marked(ir):
    seen = excerpt(
        ir(SOURCE), {"kernel.py:6": "dead read of k_cache", "kernel.py:10": "elsewhere", "x.py:6": "another"}
    )
    assert (seen.file, seen.first) == ("kernel.py", 4)
    assert seen.lines == ("@jit", "def kernel(a):", "    b = a", "    return b")
    assert seen.marks == {6: "dead read of k_cache"}


def test_a_line_outside_functions_shows_the_file(ir):
    assert excerpt(ir(SOURCE), {"kernel.py:10": "here"}).first == 1


def test_a_long_function_is_cut_round_the_line(ir):
    source = "def kernel():\n" + "".join(f"    a{i} = {i}\n" for i in range(200))
    for line in (2, 100, 201):
        seen = excerpt(ir(source), {f"kernel.py:{line}": "here"})
        assert len(seen.lines) == MOST_LINES
        assert seen.lines[line - seen.first] == f"    a{line - 2} = {line - 2}"
        assert seen.marks == {line: "here"}


def test_what_is_no_python_is_shown_as_it_is(ir):
    assert excerpt(ir("def (:\n"), {"kernel.py:1": "here"}).lines == ("def (:",)


def test_nothing_is_shown_where_no_line_is_known_or_its_file_is_not_there(ir):
    assert excerpt(ir(SOURCE), {}) is None
    assert excerpt(ir(SOURCE), {"": "an exception without a line"}) is None
    assert excerpt(ir(SOURCE), {"missing.py:3": "here"}) is None
    assert excerpt(ir(SOURCE), {"other.py:1": "named by the IR, but gone"}) is None
    assert excerpt((), {"kernel.py:3": "here"}) is None
