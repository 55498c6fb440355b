"""The life of a kept case: adopted, counted, pruned."""

import json
import zipfile

import pytest
from click.testing import CliRunner

from harness.case import Case, Seq, to_json
from harness.corpus import Corpus, Entry, read
from harness.keeping import main, signature, smallest_of_each, within
from harness.results import Finding

WRONG = Finding(kind="accuracy", message="out is 2")


def entry(kv_len=5, subject="mine.py:f", finding=WRONG, **fields):
    return Entry(why="w", case=Case(seqs=(Seq(kv_len=kv_len),)), subject=subject, finding=finding, **fields)


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def adopt(artefact, folder, *options):
    return invoke("adopt", artefact, "--corpus", folder, *options)


@pytest.fixture
def artefact(tmp_path):
    """Writes an entry to a file of an artefact; gives the folder."""

    def write(one, name="x.json"):
        folder = tmp_path / "artefact"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(one if isinstance(one, str) else to_json(one))
        return folder

    return write


def kept(folder):
    return [one for _, one in Corpus(folder).entries()]


# --- adopt --------------------------------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_zip_are_adopted(tmp_path, artefact):
    folder = artefact(entry())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../elsewhere.json", to_json(entry()))
    for number, source in enumerate((folder, folder / "x.json", tmp_path / "a.zip")):
        corpus = tmp_path / f"corpus{number}"
        assert adopt(source, corpus).exit_code == 0
        assert kept(corpus) == [entry()]
        (path,) = corpus.rglob("*.json")
        assert path.parent == corpus / "decode"
    assert not (tmp_path.parent / "elsewhere.json").exists()


def test_the_same_finding_again_is_counted_and_the_smaller_case_stays(tmp_path, artefact):
    corpus = tmp_path / "corpus"
    adopt(artefact(entry(7, date="2026-03-02")), corpus)
    said = adopt(artefact(entry(5, date="2026-03-09")), corpus)
    (one,) = kept(corpus)
    assert (one.case.seqs[0].kv_len, one.date, one.last_seen, one.seen) == (5, "2026-03-02", "2026-03-09", 2)
    assert said.stdout.endswith(": seen 2 times, first on 2026-03-02, last on 2026-03-09\n")
    adopt(artefact(entry(9, date="2026-02-01")), corpus)
    (one,) = kept(corpus)
    assert (one.case.seqs[0].kv_len, one.date, one.last_seen, one.seen) == (5, "2026-02-01", "2026-03-09", 3)


def test_another_family_another_subject_and_other_traits_are_other_findings(tmp_path, artefact):
    corpus = tmp_path / "corpus"
    others = (entry(), entry(6, finding=Finding(kind="hang", message="m")), entry(subject="theirs.py:f"), entry(0))
    for one in others:
        adopt(artefact(one), corpus)
    assert len(kept(corpus)) == len({signature(one) for one in others}) == 4


def test_the_same_case_of_another_family_is_counted_not_lost(tmp_path, artefact):
    adopt(artefact(entry()), tmp_path / "corpus")
    adopt(artefact(entry(finding=Finding(kind="hang", message="m"))), tmp_path / "corpus")
    assert [one.seen for one in kept(tmp_path / "corpus")] == [2]


@pytest.mark.parametrize("subject", ["/etc/evil.py:f", "../evil.py:f", "a/../../evil.py:f", "evil", "evil.so:f"])
def test_a_subject_outside_the_project_is_refused_unless_it_is_said_which_it_is(tmp_path, artefact, subject):
    folder = artefact(entry(subject=subject))
    refused = adopt(folder, tmp_path / "corpus")
    assert refused.exit_code == 2
    assert f"subject is {subject!r}, but should be" in refused.stderr
    assert not (tmp_path / "corpus").exists()
    assert adopt(folder, tmp_path / "corpus", "--subject", "mine.py:f").exit_code == 0
    assert kept(tmp_path / "corpus")[0].subject == "mine.py:f"


def test_escapes_for_the_terminal_are_not_kept(tmp_path, artefact):
    evil = "\x1b]0;title\x07\x1b[2Jout\nis 2"
    adopt(artefact(entry(finding=Finding(kind="accuracy", message=evil, explains=(evil,)))), tmp_path / "corpus")
    (one,) = kept(tmp_path / "corpus")
    assert one.finding.message == one.finding.explains[0] == " ]0;title  [2Jout is 2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "missing required field `why`"),
        ('{"why": "w", "case": {}}', "subject is ''"),
        ('{"why": "w", "case": {}, "run": "rm"}', "unknown field `run`"),
        (to_json(entry(2**20)), "elements of K and V"),
        ('{"why": "' + "w" * 2**18 + '", "case": {}}', "an artefact holds up to"),
        ("not json", "x.json"),
    ],
)
def test_what_is_no_entry_within_bounds_is_refused_in_one_line(tmp_path, artefact, text, told):
    refused = adopt(artefact(text), tmp_path / "corpus")
    assert refused.exit_code == 2
    assert told in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "corpus").exists()


def test_recorded_cases_are_adopted_for_a_subject_with_what_they_do_not_hold(tmp_path, artefact):
    recorded = entry(finding=None, subject="", seen=7, notes=("9 blocks are spare",))
    folder = artefact(recorded)
    (folder / "1-ab.counts").write_text("{}")
    assert "--subject says which it is" in adopt(folder, tmp_path / "corpus").stderr
    assert adopt(folder, tmp_path / "corpus", "--subject", "mine.py:f").exit_code == 0
    (one,) = kept(tmp_path / "corpus")
    assert (one.subject, one.seen, one.notes) == ("mine.py:f", 7, ("9 blocks are spare",))


def test_an_empty_artefact_is_wrong_use(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there is no case in" in adopt(tmp_path / "empty", tmp_path / "corpus").stderr


def test_links_of_an_artefact_are_not_followed(tmp_path, artefact):
    (tmp_path / "secret.json").write_text(to_json(entry()))
    folder = artefact(entry(9))
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    adopt(folder, tmp_path / "corpus")
    assert kept(tmp_path / "corpus") == [entry(9)]


# --- list ---------------------------------------------------------------------------------------------------------


def test_the_list_tells_first_seen_last_seen_and_how_often(tmp_path):
    Corpus(tmp_path).add(entry(date="2026-03-02", last_seen="2026-03-09", seen=3))
    (row,) = json.loads(invoke("list", "--corpus", tmp_path, "--json").stdout)["entries"]
    assert (row["first_seen"], row["last_seen"], row["seen"]) == ("2026-03-02", "2026-03-09", 3)
    told = invoke("list", "--corpus", tmp_path).stdout
    assert told.endswith(": mine.py:f: w; seen 3 times, first on 2026-03-02, last on 2026-03-09\n")


# --- prune --------------------------------------------------------------------------------------------------------


def test_the_smallest_of_each_signature_stays_and_every_case_kept_by_hand(tmp_path):
    corpus = Corpus(tmp_path)
    paths = {kv_len: corpus.add(entry(kv_len)) for kv_len in (5, 7, 9)}
    by_hand = [corpus.add(entry(kv_len, finding=None)) for kv_len in (11, 13)]
    assert set(smallest_of_each(corpus.entries())) == {paths[5], *by_hand}


def test_within_the_time_the_latest_seen_come_first(tmp_path):
    days = {
        "a": entry(date="2026-01-01"),
        "b": entry(date="2026-01-01", last_seen="2026-03-01"),
        "c": entry(date="2026-02-01"),
    }
    entries = {tmp_path / name: one for name, one in days.items()} | {tmp_path / "hand": entry(finding=None)}
    costs = dict.fromkeys(entries, 1.0)
    for seconds, names in ((0, {"hand"}), (2, {"hand", "b"}), (3, {"hand", "b", "c"}), (9, {"hand", "a", "b", "c"})):
        assert {path.name for path in within(entries, seconds, costs)} == names


def test_prune_runs_what_it_keeps_and_deletes_the_rest_unless_it_is_a_dry_run(tmp_path):
    corpus = Corpus(tmp_path)
    small, large = corpus.add(entry(5, subject="ours.decode")), corpus.add(entry(7, subject="ours.decode"))
    arguments = ("prune", "--corpus", tmp_path, "--seconds", 100, "--executor", "gridsim")
    said = invoke(*arguments, "--dry-run")
    assert said.stdout == f"would prune {large}: w\n1 of 2 cases are kept\n"
    assert large.exists()
    assert invoke(*arguments).exit_code == 0
    assert small.exists()
    assert not large.exists()
    assert read(small) == entry(5, subject="ours.decode")
