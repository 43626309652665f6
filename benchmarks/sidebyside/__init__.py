"""Octavo and its peers on the same work, taking turns: workloads, the run, its results, and the page made from them."""
