"""Model files: GGUF, safetensors, quantised layouts, the catalogue and downloads."""
