"""A target for cuvil-hw that lives in a package of its own."""
