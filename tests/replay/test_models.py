"""Cache geometry: bytes a token known from the models' papers and configurations, and tensor parallelism."""

import pytest

from numba_kvswap.replay.models import MODELS, BlockShape, model_named


@pytest.mark.parametrize(
    ("name", "tp", "lists", "layers", "block_shape", "bytes_a_token"),
    [
        ("llama-3-8b", 1, ["k", "v"], 32, (8, 16, 128), 128 * 1024),
        ("llama-3-8b", 2, ["k", "v"], 32, (4, 16, 128), 64 * 1024),
        ("llama-3-70b", 1, ["k", "v"], 80, (8, 16, 128), 320 * 1024),
        ("llama-3-70b", 8, ["k", "v"], 80, (1, 16, 128), 40 * 1024),
        ("qwen3-32b", 1, ["k", "v"], 64, (8, 16, 128), 256 * 1024),
        # 61 layers x 576 elements x 2 bytes: the 70 KB a token of DeepSeek-V3 (arXiv 2505.09343, table 1).
        ("deepseek-v3", 1, ["latent"], 61, (1, 16, 576), 70_272),
        ("deepseek-v3", 8, ["latent"], 61, (1, 16, 576), 70_272),
    ],
)
def test_the_known_models(name, tp, lists, layers, block_shape, bytes_a_token):
    shapes = MODELS[name].block_shapes(block_tokens=16, tp=tp)
    assert [(shape.name, shape.layer) for shape in shapes] == [(n, layer) for n in lists for layer in range(layers)]
    assert {shape.block_shape for shape in shapes} == {block_shape}
    assert {shape.dtype for shape in shapes} == {"bfloat16"}
    assert sum(shape.block_bytes for shape in shapes) == 16 * bytes_a_token


def test_tiny_is_small_at_the_default_block():
    shapes = model_named("tiny").block_shapes(block_tokens=512)
    assert shapes[0] == BlockShape("k", 0, (1, 512, 1), "uint8", 512)
    assert [(shape.name, shape.layer) for shape in shapes] == [("k", 0), ("k", 1), ("v", 0), ("v", 1)]


def test_layers_may_be_overridden():
    assert [s.layer for s in model_named("deepseek-v3").block_shapes(64, layers=3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("llama-3-8b", {"tp": 3}, r"tp: came 3.*expected one of \[1, 2, 4, 8\]"),
        ("llama-3-70b", {"tp": 16}, "tp: came 16"),
        ("llama-3-8b", {"tp": 0}, "tp: came 0"),
        ("deepseek-v3", {"tp": -1}, "tp: came -1"),
        ("tiny", {"layers": 0}, "layers: came 0"),
        ("tiny", {"block_tokens": 0}, "block_tokens: came 0"),
    ],
)
def test_geometry_that_cannot_be(name, arguments, says):
    with pytest.raises(ValueError, match=says):
        model_named(name).block_shapes(**({"block_tokens": 512} | arguments))


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(ValueError, match=r"came 'gpt-5', expected one of tiny, llama-3-8b"):
        model_named("gpt-5")
