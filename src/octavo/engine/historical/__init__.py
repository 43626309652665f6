"""How engines served before paging and iteration-level batching, for comparison: only behind explicit flags."""
