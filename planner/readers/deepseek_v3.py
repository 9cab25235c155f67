"""DeepSeek-V3 and Kimi-K2: latent attention, dense first layers, routed and shared experts in the others."""

from planner.readers.blocks import LatentAttention, MoeMlp, make_dims
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.stack import Stack, mixed_stack


def read_deepseek_v3(config: Config) -> Stack:
    """The layers of a DeepSeek-V3, without its multi-token prediction."""
    experts_key = config.first_of("n_routed_experts", "num_local_experts")
    experts, choices = config.size(experts_key), config.size("num_experts_per_tok")
    config.check_choices("num_experts_per_tok", choices, experts_key, experts)
    expert_ffn = config.size("moe_intermediate_size")
    num_shared = config.optional_size("n_shared_experts", absent=1, minimum=0) or 0
    q_latent = config.optional_size("q_lora_rank", absent=1536)
    rope, nope = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    optional = {"q_latent": q_latent, "shared_ffn": num_shared * expert_ffn}
    dims = make_dims(
        hidden=config.size("hidden_size"),
        vocab=config.size("vocab_size"),
        heads=config.size("num_attention_heads"),
        kv_latent=config.size("kv_lora_rank"),
        rope_size=rope,
        nope_size=nope,
        qk_size=rope + nope,
        v_size=config.size("v_head_dim"),
        ffn=config.size("intermediate_size"),
        experts=experts,
        router_experts=experts,
        choices=choices,
        expert_ffn=expert_ffn,
        **{name: size for name, size in optional.items() if size},
    )
    return mixed_stack(
        dims,
        LatentAttention(bias=config.flag("attention_bias", default=False), q_latent=q_latent is not None),
        MoeMlp(shared=num_shared > 0),
        _expert_layers(config),
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.size("max_position_embeddings", default=4096, maximum=MAX_POSITIONS),
    )


def _expert_layers(config: Config) -> list[bool]:
    """Whether each layer has experts: from ``first_k_dense_replace`` on, every ``moe_layer_freq``-th."""
    num_layers = config.size("num_hidden_layers", maximum=MAX_LAYERS)
    num_dense = config.size("first_k_dense_replace", default=3, minimum=0)
    step = config.size("moe_layer_freq", default=1)
    return [number >= num_dense and number % step == 0 for number in range(num_layers)]
