"""Suites that ask which networks are proven right on words of every length."""
