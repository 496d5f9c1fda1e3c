"""Tasks from the files of bAbI (Weston et al., "Towards AI-Complete Question Answering")."""
