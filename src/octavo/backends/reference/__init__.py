"""The ops in numpy: slow, readable, and the specification of every value (ops.py, sampling.py)."""
