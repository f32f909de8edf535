"""The version: here, so that modules need not import the package's face, which imports them."""

__version__ = "0.2.0"
