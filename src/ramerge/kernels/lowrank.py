"""Rows of a low-rank product, ``left @ right``, added to a piece of a matrix.

A BLAS call would be faster per flop, but its last bits depend on the shape of the piece and on its
thread count. Here element (i, j) is summed over the rank in order, whatever the piece, so that
reading a tensor in chunks gives the bits of reading it at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ramerge.kernels.codec import JIT

_BLOCK = 2048  # columns summed at a time: the running sums stay in the first-level cache


@njit(inline="always", **JIT)
def _row_piece(left_row, right, j, m, total):
    """total[:m] = left_row @ right[:, j : j + m], summed over the rank in order."""
    rank = left_row.size
    for t in range(m):
        total[t] = 0
    k = 0
    while k + 4 <= rank:
        a, b, c, d = left_row[k], left_row[k + 1], left_row[k + 2], left_row[k + 3]
        p, q = right[k][j : j + m], right[k + 1][j : j + m]
        r, s = right[k + 2][j : j + m], right[k + 3][j : j + m]
        for t in range(m):
            total[t] = total[t] + a * p[t] + b * q[t] + c * r[t] + d * s[t]
        k += 4
    while k < rank:
        a, p = left_row[k], right[k][j : j + m]
        for t in range(m):
            total[t] += a * p[t]
        k += 1


@njit(**JIT)
def add_lowrank(out, start, left, right, scale):
    """Add ``scale * (left @ right)`` to elements [start, start + out.size) of the flattened matrix.

    Args:
        out: float32 or float64 ``[n]``, the piece.
        start: flat index of the piece's first element.
        left: ``[rows, rank]`` of out's dtype.
        right: ``[rank, columns]`` of out's dtype, contiguous.
        scale: number of out's dtype.
    """
    columns = right.shape[1]
    total = np.empty(_BLOCK, out.dtype)
    done = 0
    while done < out.size:
        i, j = divmod(start + done, columns)
        m = min(columns - j, out.size - done, _BLOCK)
        _row_piece(left[i], right, j, m, total)
        piece = out[done : done + m]
        for t in range(m):
            piece[t] += scale * total[t]
        done += m


@njit(**JIT)
def scale_rows(out, start, columns, factor, *, by_row):
    """Multiply a piece by ``factor[row]`` (``by_row``) or ``factor[column]``, element by element.

    Args:
        out: float32 or float64 ``[n]``, the piece.
        start: flat index of the piece's first element.
        columns: row length of the matrix.
        factor: of out's dtype, ``[rows]`` or ``[columns]``.
        by_row: which of the two.
    """
    for t in range(out.size):
        i, j = divmod(start + t, columns)
        out[t] *= factor[i] if by_row else factor[j]


@njit(**JIT)
def add_squares(piece, start, columns, total, *, by_row):
    """Add the squares of a piece to ``total[row]`` (``by_row``) or ``total[column]``, in order.

    Args:
        piece: float32 or float64 ``[n]``.
        start: flat index of the piece's first element.
        columns: row length of the matrix.
        total: float64, ``[rows]`` or ``[columns]``.
        by_row: which of the two.
    """
    for t in range(piece.size):
        i, j = divmod(start + t, columns)
        value = np.float64(piece[t])
        total[i if by_row else j] += value * value
