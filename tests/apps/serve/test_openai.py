"""OpenAI's own client, unmodified, on the server's routes."""

from collections.abc import Iterator

import pytest

from tests.apps.serve.serving import Serving

openai = pytest.importorskip("openai")

PROMPT = "import os\n"


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=serving.url + "/v1", api_key="any", max_retries=0) as found:
        yield found


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


def test_a_completion_s_stream_is_its_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30, temperature=0)
    *chunks, last = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=30, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert not last.choices
    assert last.usage is not None
    assert last.usage.completion_tokens == 30


def test_several_samples_are_several_choices_of_one_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, temperature=1, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 18)
    texts = ["", "", ""]
    for chunk in client.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, temperature=0, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert len(set(texts)) == 1
    assert texts[0]


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    choice = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2).choices[0]
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert "".join(found.tokens) == choice.text
    assert found.text_offset == [sum(map(len, found.tokens[:at])) for at in range(4)]
    for token, own, best in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert max(best.values()) == best[token] == own


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat(client: openai.OpenAI, serving: Serving, stream: bool) -> None:
    messages = [{"role": "user", "content": "hello"}]
    prompt = "user: hello\nassistant:"
    expected = serving.generate(text=prompt, sampling_params={"temperature": 0, "max_new_tokens": 8})["text"]
    create = client.chat.completions.create
    if stream:
        chunks = list(create(model="tiny", messages=messages, max_tokens=8, temperature=0, stream=True))  # type: ignore[call-overload]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "length"
    else:
        answer = create(model="tiny", messages=messages, max_tokens=8, temperature=0)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].message.role == "assistant"


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 4
    for each in found.content:
        assert bytes(each.bytes or ()).decode() == each.token
        assert each.top_logprobs[0].logprob == each.logprob >= each.top_logprobs[1].logprob


def test_errors_are_the_client_s_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=0)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="context_length"):
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10_000)
