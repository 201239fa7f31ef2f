"""Passes change a program in place. Each module says what it does, before → after; pipeline.py names them."""
