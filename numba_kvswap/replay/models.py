"""The KV cache geometry of known models: which lists of layers a cache has, and the shape of a block in each.

Sources, one for each model: the `config.json` published with its weights, field names as they stand there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LAYERS_MAX = 1 << 16
"""So many layers no model has, and so many records take some tens of MB."""

_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "uint8": 1}


@dataclass(frozen=True, slots=True)
class CacheList:
    """One list of layers of a cache, as "k": heads and elements a head that a token has in one layer.

    `split_by_tp` says whether tensor parallelism gives each rank its share of the heads.
    """

    name: str
    kv_heads: int
    head_dim: int
    split_by_tp: bool


@dataclass(frozen=True, slots=True)
class BlockShape:
    """A block in one layer of one list: shape (kv_heads, block_tokens, head_dim), dtype by name, size in bytes."""

    name: str
    layer: int
    block_shape: tuple[int, int, int]
    dtype: str
    block_bytes: int


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """A model's cache: `layers` layers, in each of the lists `caches`, elements of `dtype`."""

    name: str
    layers: int
    caches: tuple[CacheList, ...]
    dtype: str

    def block_shapes(self, block_tokens: int, tp: int = 1, layers: int | None = None) -> list[BlockShape]:
        """Block shapes on one of `tp` ranks, list by list (all layers of K, then of V), for blocks of `block_tokens`.

        `layers` stands in for the model's own count. Raises ValueError where a number is under 1, where `layers` is
        above `LAYERS_MAX`, or where `tp` does not divide the KV heads of a list that it splits.
        """
        count = self.layers if layers is None else layers
        for name, value in (("block_tokens", block_tokens), ("tp", tp), ("layers", count)):
            if value < 1:
                raise ValueError(f"{name}: came {value}, expected 1 or more")
        if count > LAYERS_MAX:
            raise ValueError(f"layers: came {count}, expected at most {LAYERS_MAX}")
        return [self._block_shape(cache, layer, block_tokens, tp) for cache in self.caches for layer in range(count)]

    def _block_shape(self, cache: CacheList, layer: int, block_tokens: int, tp: int) -> BlockShape:
        kv_heads = cache.kv_heads
        if cache.split_by_tp:
            if kv_heads % tp:
                raise ValueError(
                    f"tp: came {tp}, which does not divide the {kv_heads} KV heads of {self.name}; "
                    f"expected one of {[n for n in range(1, kv_heads + 1) if kv_heads % n == 0]}"
                )
            kv_heads //= tp
        shape = (kv_heads, block_tokens, cache.head_dim)
        block_bytes = math.prod(shape) * _ITEM_BYTES[self.dtype]
        return BlockShape(cache.name, layer, shape, self.dtype, block_bytes)


def _keys_and_values(kv_heads: int, head_dim: int) -> tuple[CacheList, ...]:
    return tuple(CacheList(name, kv_heads, head_dim, split_by_tp=True) for name in ("k", "v"))


_KNOWN = (
    # No model: 512 bytes a block in each layer and list at 512 tokens, for replays on the simulated device.
    ModelGeometry("tiny", 2, _keys_and_values(1, 1), "uint8"),
    # meta-llama/Meta-Llama-3-8B: num_hidden_layers 32, num_key_value_heads 8,
    # hidden_size 4096 / num_attention_heads 32, torch_dtype bfloat16.
    ModelGeometry("llama-3-8b", 32, _keys_and_values(8, 4096 // 32), "bfloat16"),
    # meta-llama/Meta-Llama-3-70B: num_hidden_layers 80, num_key_value_heads 8,
    # hidden_size 8192 / num_attention_heads 64, torch_dtype bfloat16.
    ModelGeometry("llama-3-70b", 80, _keys_and_values(8, 8192 // 64), "bfloat16"),
    # Qwen/Qwen3-32B: num_hidden_layers 64, num_key_value_heads 8, head_dim 128 (given, not hidden_size / heads),
    # torch_dtype bfloat16.
    ModelGeometry("qwen3-32b", 64, _keys_and_values(8, 128), "bfloat16"),
    # deepseek-ai/DeepSeek-V3: num_hidden_layers 61; a token's latent is kv_lora_rank 512 and its shared rotary key
    # qk_rope_head_dim 64, one list for K and V (DeepSeek-V2, arXiv 2405.04434, section 2.1), whole on every
    # rank; torch_dtype bfloat16. The multi-token prediction layer is not counted.
    ModelGeometry("deepseek-v3", 61, (CacheList("latent", 1, 512 + 64, split_by_tp=False),), "bfloat16"),
)

MODELS: Mapping[str, ModelGeometry] = MappingProxyType({model.name: model for model in _KNOWN})
"""The known models by the name that `--model` takes."""


def model_named(name: str) -> ModelGeometry:
    """The model of that name. Raises ValueError naming the known ones."""
    if name not in MODELS:
        raise ValueError(f"model: came {name!r}, expected one of {', '.join(MODELS)}")
    return MODELS[name]
