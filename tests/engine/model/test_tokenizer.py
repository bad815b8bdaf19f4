"""The tokenizer wrapper: exact round trips, and a missing or broken file in one line."""

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers, trainers

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.tokenizer import TargetTokenizer


@pytest.fixture
def file(tmp_path):
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["def f(x):\n    return x\n"] * 3, trainer)
    raw.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("text", ["", "def f(x):\n\treturn  x\n", "naïve ☃ 🙂", "<|end|>x"])
def test_decoding_undoes_encoding(file, text):
    tokenizer = TargetTokenizer(file)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_read_and_never_added(file):
    tokenizer = TargetTokenizer(file, eos_token_ids=[0])
    assert tokenizer.eos_token_ids == (0,)
    assert tokenizer.encode("<|end|>") == [0]
    assert 0 not in tokenizer.encode("return")
    assert 257 <= tokenizer.vocab_size <= 300


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"model": 3}'])
def test_a_broken_file_is_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing; the tokenizer lies beside"):
        TargetTokenizer(path)
    path.write_text(content)
    with pytest.raises(CheckpointError, match="is not a tokenizer") as caught:
        TargetTokenizer(path)
    assert "\n" not in str(caught.value)
