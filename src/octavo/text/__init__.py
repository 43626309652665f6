"""Text and tokens: tokenizers, chat templates, detokenising, stop strings."""
