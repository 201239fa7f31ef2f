"""Open shapes: dimensions with bounds, rules between them, and the proof that a program is right for every allowed
size.

Running a program needs only the standard library and NumPy; compiling one also needs z3 (`solve`).
"""
