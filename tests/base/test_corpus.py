"""The split must be the same everywhere, or scenarios would prompt with text that was trained on."""

from pathlib import Path

import pytest

from specdebug.base import corpus


def names(files: tuple[Path, ...]) -> list[str]:
    return [path.relative_to(corpus.stdlib_root()).as_posix() for path in files]


def test_every_file_is_on_exactly_one_side_in_a_fixed_order() -> None:
    train, held = names(corpus.train_files()), names(corpus.heldout_files())
    assert not set(train) & set(held)
    assert train == sorted(train)
    assert held == sorted(held)
    assert 0.05 < len(held) / (len(train) + len(held)) < 0.2


@pytest.mark.parametrize(
    ("name", "held_out"),
    [("shutil.py", True), ("tarfile.py", True), ("argparse.py", False), ("json/decoder.py", False)],
)
def test_the_split_depends_on_the_path_alone(name: str, held_out: bool) -> None:
    # Pinned: changing the rule would silently put training text into the scenarios of shipped checkpoints.
    assert corpus.is_held_out(name) is held_out
    assert (name in names(corpus.heldout_files())) is held_out
    assert (name in names(corpus.train_files())) is not held_out


def test_tests_packages_and_build_files_are_no_text() -> None:
    for name in names(corpus.train_files() + corpus.heldout_files()):
        assert "site-packages" not in name
        assert not {"test", "tests", "encodings", "__pycache__"} & set(name.split("/")[:-1])
        assert not name.startswith("_sysconfigdata")


def test_digest_follows_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(files: dict[str, bytes]) -> str:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        monkeypatch.setattr(corpus, "stdlib_root", lambda: root)
        corpus._relative_paths.cache_clear()
        return corpus.digest()

    try:
        first = digest_of({"a.py": b"x", "pkg/b.py": b"y", "test/c.py": b"z"})
        assert first == digest_of({"pkg/b.py": b"y", "a.py": b"x", "test/c.py": b"other", "d.txt": b"?"})
        assert first != digest_of({"a.py": b"x", "pkg/b.py": b"Y"})
        assert first != digest_of({"a.py": b"x", "pkg/c.py": b"y"})
    finally:
        corpus._relative_paths.cache_clear()
