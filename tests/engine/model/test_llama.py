"""The target against transformers on the same checkpoint: logits, hidden and auxiliary states."""

import pytest
import torch

from specdebug.engine.model.loader import load_target
from tests.engine.model.helpers import TINY, DenseAttention, make_target
from tests.tolerance import layers_rounding

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}
IDS = torch.randint(0, 97, (300,), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.arange(300)
NEAR = layers_rounding(TINY, len(IDS))


def reference(model):
    with torch.inference_mode():
        out = model(IDS[None], output_hidden_states=True)
    return out.logits[0], [hidden[0] for hidden in out.hidden_states]


def assert_same_logits(ours, theirs):
    torch.testing.assert_close(ours, theirs, **NEAR)
    best, second = theirs.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > 2 * NEAR["atol"] + NEAR["rtol"] * best.abs()
    assert clear.float().mean() > 0.9
    assert torch.equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"shard_size": "60KB"}, id="sharded"),
        pytest.param({"num_key_value_heads": 1}, id="one-kv-head"),
        pytest.param({"num_key_value_heads": 4}, id="no-groups"),
        pytest.param({"head_dim": 24}, id="explicit-head-dim"),
        pytest.param({"attention_bias": True}, id="attention-bias"),
        pytest.param({"rms_norm_eps": 0.1}, id="large-eps"),
        pytest.param({"rope_parameters": LLAMA3}, id="llama3-scaling"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}, id="other-theta"),
        pytest.param({"kind": "Mistral", "sliding_window": None}, id="mistral"),
        pytest.param({"kind": "Qwen2"}, id="qwen2"),
    ],
)
def test_logits_and_hidden_states_equal_transformers(tmp_path, overrides):
    theirs = make_target(tmp_path, **overrides)
    if "shard_size" in overrides:
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = load_target(tmp_path)
    logits, hidden_states = reference(theirs)
    with torch.inference_mode():
        out = ours.forward(IDS, POSITIONS, DenseAttention(), aux_layers=(0, 3, 7))
        assert_same_logits(ours.logits(out.hidden), logits)
        torch.testing.assert_close(out.hidden, hidden_states[-1], **NEAR)
        aux = out.aux.view(300, 3, 64)
        torch.testing.assert_close(aux[:, 0], hidden_states[0], rtol=0, atol=0)
        torch.testing.assert_close(aux[:, 1], hidden_states[3], **NEAR)
        # transformers' last entry is normed, so the last layer's output is compared through the norm
        torch.testing.assert_close(theirs.model.norm(aux[:, 2]), hidden_states[-1], **NEAR)


def test_chunks_and_single_tokens_give_what_one_pass_gives(target):
    attention = DenseAttention()
    with torch.inference_mode():
        whole = target.forward(IDS, POSITIONS, DenseAttention(), aux_layers=(2,))
        parts = [
            target.forward(IDS[a:b], POSITIONS[a:b], attention, aux_layers=(2,))
            for a, b in ((0, 100), (100, 297), (297, 298), (298, 298), (298, 299), (299, 300))
        ]
    torch.testing.assert_close(torch.cat([part.hidden for part in parts]), whole.hidden, **NEAR)
    torch.testing.assert_close(torch.cat([part.aux for part in parts]), whole.aux, **NEAR)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_any_stored_dtype_loads_as_any_other(tmp_path, stored, wanted):
    theirs = make_target(tmp_path, save_dtype=stored)
    ours = load_target(tmp_path, dtype=wanted)
    logits, _ = reference(theirs)
    with torch.inference_mode():
        out = ours.forward(IDS, POSITIONS, DenseAttention(), aux_layers=(1,))
        mine = ours.logits(out.hidden)
    assert mine.dtype == out.hidden.dtype == out.aux.dtype == wanted
    if wanted == torch.float32:
        assert_same_logits(mine, logits)
    else:  # rounding to 8 or 11 bits at each of some forty operations
        relative = (mine.float() - logits).norm() / logits.norm()
        assert relative < (0.03 if wanted == torch.bfloat16 else 0.004)


@pytest.mark.parametrize(("ids", "positions"), [([97], [0]), ([-1], [0]), ([5], [40]), ([5], [-1])])
def test_an_index_outside_its_table_raises(target_folder, ids, positions):
    model = load_target(target_folder, max_positions=40)
    with torch.inference_mode(), pytest.raises(IndexError, match="out of range"):
        model.forward(torch.tensor(ids), torch.tensor(positions), DenseAttention())
