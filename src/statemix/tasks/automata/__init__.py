"""Tasks whose labels a finite automaton gives: a table as text, a regular expression, or random."""
