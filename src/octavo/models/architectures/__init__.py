"""The families this build knows, one small file each. docs/adding-a-model.md walks through one."""

from octavo.models.architecture import Architecture
from octavo.models.architectures import (
    cohere,
    deepseek,
    gemma,
    glm4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    stablelm,
    starcoder2,
)

ARCHITECTURES: tuple[Architecture, ...] = (
    llama.ARCHITECTURE,
    qwen2.ARCHITECTURE,
    qwen3.ARCHITECTURE,
    qwen3.MOE,
    gemma.GEMMA2,
    gemma.GEMMA3,
    phi3.ARCHITECTURE,
    smollm3.ARCHITECTURE,
    olmo2.ARCHITECTURE,
    granite.ARCHITECTURE,
    starcoder2.ARCHITECTURE,
    stablelm.ARCHITECTURE,
    cohere.COHERE,
    cohere.COHERE2,
    glm4.ARCHITECTURE,
    gpt2.ARCHITECTURE,
    gpt_neox.ARCHITECTURE,
    gpt_oss.ARCHITECTURE,
    deepseek.ARCHITECTURE,
)
