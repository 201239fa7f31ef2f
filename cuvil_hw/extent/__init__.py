"""Shapes that are open within bounds: dimensions, rules between them, and programs that take every size allowed.

Nothing here needs more than the standard library and NumPy to run a program; `solve` needs z3 to compile one.
"""
