"""What paging and iteration-level batching are worth: one workload through the policies of several times."""
