"""Folders of safetensors whose matrices are quantised: GPTQ, AWQ, compressed-tensors, fp8 and MXFP4.

A module (`model.layers.0.mlp.up_proj`) is several tensors there: codes, scales, zero points. folder.py shows them as
one tensor `<module>.weight` in a format that the kernels know, so that nothing above has to know about it.
"""
