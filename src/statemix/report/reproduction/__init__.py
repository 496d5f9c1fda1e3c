"""The paper's tables and figures with our numbers: as text, drawn, and as a page."""
