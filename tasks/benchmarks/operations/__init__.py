"""One file per operation. Each has `OPERATIONS`; one whose kernels are not in this build is not shown."""
