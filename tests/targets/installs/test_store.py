"""Records of environments: kept, found, damaged, held."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from specdebug.base import files
from specdebug.targets.installs.release import Release
from specdebug.targets.installs.store import (
    RECORD,
    Installed,
    StoreError,
    find_installed,
    held,
    keep_check,
    look,
    remove,
)

WHOLE = json.dumps(
    Installed(Path("x"), "sglang", "0.5.13", "cpu", sys.executable, True, "digest", ("installed",)).plain
)


def environment(store: Path, version: str, *done: str) -> Installed:
    made = Installed(store / f"sglang-{version}-cpu", "sglang", version, "cpu", sys.executable, True, "digest", done)
    made.write()
    return made


def test_the_newest_complete_one_is_found(tmp_path: Path) -> None:
    environment(tmp_path, "0.5.9", "installed")
    newest = environment(tmp_path, "0.5.13", "installed")
    environment(tmp_path, "0.5.23")
    assert find_installed(tmp_path, Release("sglang")) == newest
    assert find_installed(tmp_path, Release("sglang", "0.5.9")).version == "0.5.9"
    with pytest.raises(StoreError, match=r"23 in .* is not complete; .* specdebug engines install sglang==0\.5\.23"):
        find_installed(tmp_path, Release("sglang", "0.5.23"))
    with pytest.raises(StoreError, match=r"vllm is not installed in .*sglang==0\.5\.23, .* is\); install it with"):
        find_installed(tmp_path, Release("vllm"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"engine": 1}', "lacks the key 'version'"),
        ("", "it is not JSON"),
        ("\0\0\0", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "the file must be a mapping"),
        ('{"engine": "sglang", "version": "0.5.13", "done": 3}', "the file lacks the key"),
        (WHOLE.replace('["installed"]', "[3]"), "done[0] must be text"),
        (WHOLE.replace('"0.5.13"', '"newest"'), "'newest' is no version"),
        (WHOLE.replace('"ours": true', '"ours": "yes"'), "ours must be true or false"),
        (WHOLE.replace('"checked": {}', '"checked": 7'), "checked must be a mapping"),
        (WHOLE.replace('"packages": {}', '"packages": {"a": {}}'), "packages.a lacks the key 'version'"),
    ],
)
def test_a_damaged_record_is_named_and_hides_no_other(text: str, said: str, tmp_path: Path) -> None:
    made, other = environment(tmp_path, "0.5.13", "installed"), environment(tmp_path, "0.5.9", "installed")
    (made.folder / RECORD).write_text(text)
    there, (lost,) = look(tmp_path)
    assert there == [other]
    assert f"{made.folder / RECORD}" in str(lost.error)
    assert re.search(rf"the environment is damaged: .*{re.escape(said)}", str(lost.error))
    assert "specdebug engines install makes it again" in str(lost.error)
    assert (lost.error.exit_code, lost.folder) == (2, made.folder)
    assert find_installed(tmp_path, Release("sglang")) == other
    with pytest.raises(StoreError, match="is damaged"):
        find_installed(tmp_path, Release("sglang", "0.5.13"))
    assert len(str(lost.error).splitlines()) == 1


def test_a_check_is_kept_in_the_record_as_it_is_by_then(tmp_path: Path) -> None:
    made = environment(tmp_path, "0.5.13").after("packages")
    assert look(tmp_path)[0] == [made]
    assert made.after("installed").complete
    kept = keep_check(made, {"plain": "pass"})
    assert look(tmp_path)[0] == [kept]
    assert (kept.done, kept.checked) == (("packages", "installed"), {"plain": "pass"})
    remove(made.folder)
    assert look(tmp_path)[0] == []


def test_two_do_not_install_into_one_folder(tmp_path: Path) -> None:
    told = f"in use by process {os.getpid()}; wait for it to end"
    with held(tmp_path / "one"):
        with pytest.raises(StoreError, match=told), held(tmp_path / "one"):
            pass
        with held(tmp_path / "other"):
            pass
    with held(tmp_path / "one"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*install\.json: Not a directory"):
        environment(tmp_path / "file", "1")


def test_a_record_of_another_user_names_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = environment(tmp_path, "0.5.13", "installed")
    for path, mode in ((made.folder / RECORD, 0o666), (made.folder, 0o777), (tmp_path, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(StoreError, match=rf"{path} can be written by every user: .* must be yours; name a store"):
            find_installed(tmp_path, Release("sglang"))
        path.chmod(before)
    assert find_installed(tmp_path, Release("sglang")) == made
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(files, "_owners", lambda: (owner + 1,))
    with pytest.raises(StoreError, match=rf"{tmp_path} belongs to another user \(uid {owner}\)"):
        find_installed(tmp_path, Release("sglang"))
    with pytest.raises(StoreError, match=rf"cannot make .*: {tmp_path} belongs to another user"), held(made.folder):
        pass
