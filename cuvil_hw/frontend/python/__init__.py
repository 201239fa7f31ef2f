"""Plain Python functions → level1: control flow is rewritten, then the function runs once on stand-ins (torch.export).

source.py      a function's syntax tree, and the function made from a changed tree
check.py       what can't be compiled, found before anything runs
rewrite.py     if, while, for, and, or, not, return, break, continue, assert … become calls of flow.py and calls.py
matching.py    match becomes if and elif, before that
conditions.py  conditions as boolean functions of the tensors that decide
values.py      values that depend on such conditions: merged variables, Python numbers read from tensors
flow.py        what the rewritten control flow does while the function is traced
calls.py       calls and attributes while the function is traced; builtin_calls.py: of Python's own functions
changes.py     subscripts and in-place changes
helpers.py     the names under which rewritten code finds all these
arrays.py      NumPy arrays: NumPy's own dispatch protocol; numpy_functions.py, with NumPy's own rules for dtypes
load.py        the whole: a function and example arguments → program, structure of the result, what it has captured
"""
