"""The version of this package. Kept in code, so that artifacts made from a checkout and from a wheel are the same."""

VERSION = "0.1.0"
__version__ = VERSION
