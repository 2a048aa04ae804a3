"""Workloads that `tilewright bench` knows by name. Each file has `prepare()`, which makes the inputs and gives a
function that does the work once. They are read as text and run as a user's script is, so kernels show their lines."""
