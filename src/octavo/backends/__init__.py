"""The op contract (ops.py) and its implementations: reference (numpy, the oracle) and cpu (C++)."""
