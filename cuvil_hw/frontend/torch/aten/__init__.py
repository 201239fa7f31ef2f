"""Converters of ATen operators, by theme; table.py imports them all."""
