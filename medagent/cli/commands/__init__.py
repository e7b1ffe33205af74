"""The commands and their options, as `--help` shows them.

Functions import what they need when they are called, so `--help` answers at once.
"""
