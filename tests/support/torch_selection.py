"""Which entries of op_db and module_db are run: those that models use for inference."""

from __future__ import annotations

import re

# Why entries are left out, by pattern of their names.
LEFT_OUT = {
    "draws random numbers": r"bernoulli|cauchy|exponential|geometric|log_normal|multinomial|normal|rand.*|uniform"
    r"|nn\.functional\.(.*dropout.*|fractional_max_pool.*|rrelu)|pca_lowrank|svd_lowrank",
    "complex numbers": r"fft\..*|complex|cfloat|cdouble|chalf|conj.*|imag|real|polar|stft|istft|view_as_complex"
    r"|view_as_real|resolve_conj|resolve_neg|angle|isreal|nn\.functional\.silu/complex",
    "decomposes matrices": r"linalg\.(cholesky.*|cond|det|eig.*|householder.*|inv.*|ldl.*|lstsq.*|lu.*|matrix_rank.*"
    r"|pinv.*|qr|slogdet|solve.*|svd.*|tensorinv|tensorsolve|norm.*|matrix_norm)|cholesky.*|geqrf|logdet|lu.*|ormqr"
    r"|pinverse|qr|svd|triangular_solve|matrix_exp|norm/nuc|cov|corrcoef",
    "trains": r".*_loss|.*_backward|nn\.functional\.(.*_loss|.*cross_entropy.*|kl_div|ctc_loss|nll_loss)"
    r"|native_dropout.*|_batch_norm_with_update|_native_batch_norm_legit|native_batch_norm|renorm|.*/grad",
    "a special function": r"special\..*|polygamma.*|mvlgamma.*|lgamma|digamma|igamma.*|i0|erfinv|nextafter|gcd"
    r"|lcm|frexp",
    "gives memory that nobody wrote": r"empty.*|new_empty.*|resize_.*",
    "a shape that depends on data": r"nonzero|unique.*|masked_select|argwhere|bincount|hist.*|combinations"
    r"|repeat_interleave|to_sparse|sparse\..*|_segment_reduce.*|item|allclose|equal|is_.*",
    "constants only": r"signal\..*|arange|linspace.*|logspace.*|eye|ones|zeros|full|tri.*_indices|broadcast_shapes",
    "reads memory by strides": r"as_strided.*",
    "of a private or vendor's kind": r"jiterator.*|torch\..*|hash_tensor|_(?!_getitem).*|sum_to_size|masked\..*",
}  # fmt: skip
_PATTERNS = {reason: re.compile(pattern) for reason, pattern in LEFT_OUT.items()}


def why_left_out(name: str) -> str:
    """Empty for an operator that is run; `name` with its variant behind a slash."""
    return next((reason for reason, pattern in _PATTERNS.items() if pattern.fullmatch(name)), "")
