"""Requests in, steps out: pages, prefix index, scheduler. No tensors, no I/O, no clock."""
