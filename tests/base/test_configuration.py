"""The configuration file: which one is taken, what it may say, and where it is wrong."""

from pathlib import Path

import pytest

from specdebug.base import files
from specdebug.base.configuration import KEYS, OWN_NAME, PROJECT_NAME, VARIABLE, load
from specdebug.base.errors import SpecDebugError

NONE: dict[str, str] = {}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(folder: Path, environment: dict[str, str] = NONE) -> str:
    with pytest.raises(SpecDebugError) as caught:
        load(folder, environment)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = (
        'content = ["mine"]\ndevice = "cuda:1"\ndtype = "bfloat16"\nattention-backend = "fa3"\npage-size = 16\n'
        'jobs = 2\ntimeout = 90\nconfidence = "99%"\nmax_trials = 50\n'
    )
    file = write(tmp_path / OWN_NAME, text)
    found = load(tmp_path, NONE)
    assert found.path == file
    assert found.values == {
        "content": [tmp_path / "mine"],
        "device": "cuda:1",
        "dtype": "bfloat16",
        "backend": "fa3",
        "page_size": 16,
        "jobs": 2,
        "timeout": 90.0,
        "confidence": "99%",
        "max_trials": 50,
    }
    assert set(found.values) == set(KEYS)
    assert [str(each.where) for each in found.settings.values()] == [f"{file}:{line}" for line in range(1, 10)]
    assert found.content == [tmp_path / "mine"]


def test_the_variable_names_another_file_or_none(tmp_path: Path) -> None:
    write(tmp_path / OWN_NAME, "jobs = 1\n")
    other = write(tmp_path / "other" / "ci.toml", "jobs = 7\n")
    assert load(tmp_path, {VARIABLE: str(other)}).values == {"jobs": 7}
    assert load(tmp_path, {VARIABLE: ""}).values == {}
    gone = tmp_path / "gone.toml"
    assert refusal(tmp_path, {VARIABLE: str(gone)}) == (
        f"{gone}: cannot be read: No such file or directory ({VARIABLE} names it)"
    )
    project = write(tmp_path / "other" / PROJECT_NAME, "[project]\n")
    assert "has no [tool.specdebug]" in refusal(tmp_path, {VARIABLE: str(project)})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('devise = "cpu"', "unknown key 'devise'; did you mean 'device'?"),
        ("page_sise = 1", "unknown key 'page_sise'; did you mean 'page-size'?"),
        ('device = "gpu"', "device 'gpu' does not fit the form cpu|cuda"),
        ('dtype = "float8"', "dtype cannot be 'float8'; did you mean 'float32'?"),
        ("backend = 3", "backend must be text, not 3"),
        ("jobs = 0", "jobs must be a whole number from 1 to 2147483647, not 0"),
        ("jobs = true", "jobs must be a whole number from 1 to 2147483647, not true"),
        ("timeout = -1.5", "timeout must be a number from 0 to 1000000000, not -1.5"),
        ("timeout = nan", "timeout must be a finite number, not nan"),
        ("confidence = []", "confidence must be a probability, such as 0.95 or '95%', not a list"),
        ('content = "mine"', "content must be a list, not 'mine'"),
        ("dtype.x = 1", "dtype must be text, not a mapping"),
    ],
)
@pytest.mark.parametrize("name", [OWN_NAME, PROJECT_NAME])
def test_what_is_wrong_is_named_with_its_line(name: str, line: str, said: str, tmp_path: Path) -> None:
    key = line.split(" ")[0]
    before = f"# {key}\n\n" if name == OWN_NAME else f"[tool.other]\n{line}\n[tool.specdebug]\n"
    file = write(tmp_path / name, f"{before}{line}\n[elsewhere]\nx = 1\n" if name != OWN_NAME else f"{before}{line}\n")
    number = (before + line).count("\n") + 1
    assert refusal(tmp_path).startswith(f"{file}:{number}: {said}")


def test_one_option_under_two_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path / OWN_NAME, 'backend = "fa3"\nattention-backend = "triton"\n')
    assert refusal(tmp_path) == f"{tmp_path / OWN_NAME}:2: 'attention-backend' is set twice, in line 1 as well"


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    write(tmp_path / OWN_NAME, "jobs = 1\njobs 2\n")
    assert refusal(tmp_path).startswith(f"{tmp_path / OWN_NAME}:2: is not TOML: ")
    (tmp_path / OWN_NAME).unlink()
    write(tmp_path / PROJECT_NAME, "[project\n")
    assert load(tmp_path, NONE).values == {}  # somebody else's to say
    write(tmp_path / PROJECT_NAME, "[project\n[tool.specdebug]\n")
    assert "is not TOML" in refusal(tmp_path)
    write(tmp_path / PROJECT_NAME, "tool.specdebug = 3\n")
    assert refusal(tmp_path) == f"{tmp_path / PROJECT_NAME}: tool.specdebug must be a table"


def test_another_s_file_is_used_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    file = write(tmp_path / OWN_NAME, 'jobs = 2\ncontent = ["mine"]\n')
    assert load(tmp_path, NONE).content == [tmp_path / "mine"]
    owner = file.stat().st_uid
    monkeypatch.setattr(files, "_owners", lambda: (owner + 1,))
    assert refusal(tmp_path) == (
        f"{file}: belongs to another user (uid {owner}), and may name code; "
        f"to use it say {VARIABLE}={file}, to use none {VARIABLE}="
    )
    assert load(tmp_path, {VARIABLE: str(file)}).content == [tmp_path / "mine"]
    assert load(tmp_path, {VARIABLE: ""}).values == {}


def test_a_file_that_every_user_may_write_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / OWN_NAME, "jobs = 2\n")
    file.chmod(0o666)
    assert refusal(tmp_path).startswith(f"{file}: can be written by every user, and may name code")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"jobs = {'9' * 5000}", "is not TOML"),
        ("jobs = " + "[" * 100_000, "is not TOML"),
        (f"device = 0x{'f' * 5000}", "device must be text, not a number too long to show"),
        (f"timeout = 0x{'f' * 5000}", "timeout must be a number from 0 to 1000000000"),
        (f"timeout = 0x{'f' * 300}", "timeout must be a number from 0 to 1000000000"),
        ("device = " + "[" * 200 + "]" * 200, "device must be text, not a list"),
        (f"device = '{'x' * 10_000}'", "..."),
    ],
    ids=range(7),
)
def test_a_value_of_any_size_is_one_short_line(text: str, words: str, tmp_path: Path) -> None:
    write(tmp_path / OWN_NAME, text)
    said = refusal(tmp_path)
    assert words in said
    assert "\n" not in said
    assert len(said) < 500
