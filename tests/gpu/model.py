"""A model with GLM-5's 78 + 1 layers and KV geometry (656-byte fp8 rows), everything else tiny: model.py FOLDER.

Its weights are dummies (``--load-format dummy``), its tokenizer knows nine words.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WORDS = "hello world this is a tiny tokenizer for testing"
ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0}
CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "torch_dtype": "bfloat16",
    "vocab_size": 512, "hidden_size": 512, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_hidden_layers": 78, "num_nextn_predict_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 64,
    "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "routed_scaling_factor": 2.5,
    "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 256,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "qk_head_dim": 256, "head_dim": 64,
    "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "rope_parameters": ROPE,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    "attention_bias": False, "initializer_range": 0.02, "use_cache": True,
    "rope_interleave": True, "indexer_rope_interleave": True,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}assistant:"


def main(folder: Path) -> None:
    """Write config and tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([WORDS] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
