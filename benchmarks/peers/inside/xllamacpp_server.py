"""Runs in xllamacpp's environment: MODEL PORT SLOTS TOKENS_OF_ALL_SLOTS THREADS."""

from __future__ import annotations

import sys
import time

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    port, slots, context, threads = map(int, sys.argv[2:])
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_parallel, params.n_ctx, params.kv_unified = slots, context, False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    while server:
        time.sleep(3600)


if __name__ == "__main__":
    main()
