"""What follows from one declaration agrees: reader, writer and schema, on every shipped file and on broken ones."""

import copy
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from specdebug.base.errors import ContentError, InvalidOption
from specdebug.base.yamlio import parse_yaml
from specdebug.engine.config import EngineConfig
from specdebug.scenario.checks import KnownNames, check_scenario
from specdebug.scenario.grammar import Scenario, read_scenario

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
KNOWN = KnownNames((1, 2), ("default", "kv"))


@functools.cache
def validator():
    """The schema's validator; skips the test where jsonschema is not installed."""
    return pytest.importorskip("jsonschema").Draft202012Validator(Scenario.json_schema())


FULL = yaml.safe_load(Path(__file__).with_name("full.yaml").read_text(encoding="utf-8"))

INTRUDERS = [None, True, "word", "", -1, 2**70, 0.25, [], [None], {}, {"word": 1}]


def schema_accepts(data) -> bool:
    return validator().is_valid(data)


def reader_accepts(data) -> bool:
    """Whether shapes, types and ranges are right; names and engine options are judged elsewhere."""
    text = json.dumps(data)
    try:
        read_scenario(parse_yaml(text, "mutant"))
    except ContentError:
        return False
    return True


def paths_in(data, path=()):
    yield path
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in below:
        yield from paths_in(value, (*path, key))


def changed(path, change):
    """FULL with ``change`` applied to the container at ``path[:-1]`` and the last key."""
    data = copy.deepcopy(FULL)
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return data


def mutants():
    for path in paths_in(FULL):
        if not path:
            continue
        for value in INTRUDERS:
            yield path, changed(path, lambda holder, key, value=value: holder.__setitem__(key, value))
        yield path, changed(path, lambda holder, key: holder.pop(key))
        if isinstance(path[-1], str):
            yield path, changed(path, lambda holder, key: holder.__setitem__(key + "x", holder.pop(key)))


def is_engine_value(path):
    """Engine values are ``EngineConfig``'s to judge, which takes no part in the reader's."""
    return "engine" in path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_satisfy_the_schema(path):
    validator().validate(yaml.safe_load(path.read_text()))


def test_the_full_example_is_right_and_uses_every_key():
    validator().validate(FULL)
    check_scenario(read_scenario(parse_yaml(json.dumps(FULL), "full")), KNOWN)
    used = {key for path in paths_in(FULL) for key in path if isinstance(key, str)}
    assert keys_of(Scenario.json_schema()) <= used


def keys_of(schema):
    """Every property name a schema mentions."""
    found = set(schema.get("properties", ()))
    for part in schema.values():
        for each in part if isinstance(part, list) else [part]:
            if isinstance(each, dict):
                found |= keys_of(each)
    return found - {"$defs"}


def test_schema_and_reader_agree_on_mutants():
    agree_on(every=4, least=250)


@pytest.mark.slow
def test_schema_and_reader_agree_on_every_mutant():
    agree_on(every=1, least=1000)


def agree_on(every, least):
    count = accepted = 0
    for number, (path, data) in enumerate(mutants()):
        if number % every or is_engine_value(path):
            continue
        count += 1
        by_schema, by_reader = schema_accepts(data), reader_accepts(data)
        accepted += by_schema
        assert by_schema == by_reader or follows_from_another_value(path, data), (path, data, by_schema)
    assert count > least
    assert least / 20 < accepted < count / 2


def follows_from_another_value(path, data):
    """What a schema cannot say: an index below the number of requests, a range's ends in order."""
    if path[:2] == ("workload", 4) and (path[-1] == "requests" or path[-2:-1] == ("requests",)):
        return True
    return isinstance(path[-1], int) and path[-2] in ("tokens", "input_tokens", "max_new_tokens")


def engine_complaint(options) -> str | None:
    try:
        EngineConfig.from_dict(options)
    except InvalidOption as error:
        return error.reason
    return None


def test_schema_and_engine_agree_on_the_shape_of_options():
    shapes = ("unknown key", "must be a ", "must be t", "cannot be ", "needs at least", "must not be empty")
    count = 0
    for path, data in mutants():
        if path[0] != "engine" or len(path) == 1:
            continue
        count += 1
        reason = engine_complaint(data["engine"])
        if reason is None:
            assert schema_accepts(data), path
        elif reason.startswith(shapes):
            assert not schema_accepts(data), (path, reason)
    assert count > 200


def test_the_full_example_is_written_as_it_is_read():
    scenario = read_scenario(parse_yaml(json.dumps(FULL), "full"))
    written = scenario.to_dict()
    validator().validate(written)
    assert Scenario.from_dict(written, scenario.path) == scenario
    assert written["workload"][5]["turns"] == FULL["workload"][5]["turns"]
    assert "requests" not in written["workload"][5]
    assert written["workload"][3]["prompt"] == FULL["workload"][3]["prompt"]
    assert written["arms"]["fixed"] == {"revert": [], "engine": {}, "not_on": {}}
    assert written["arms"]["other"]["oracles"]["accept"] is None


def test_the_grammar_loads_neither_torch_nor_the_engine():
    code = "import sys, specdebug.scenario.grammar; print(*sys.modules, sep='\\n')"
    env = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout.split()
    assert "specdebug.scenario.grammar" in loaded
    assert not {"torch", "specdebug.engine.config"} & set(loaded)
