"""Figures, tables and pages made from stored rows."""
