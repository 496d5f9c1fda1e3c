"""Tasks of the Chomsky hierarchy (Deletang et al., "Neural Networks and the Chomsky Hierarchy").

Lengths and supervision follow their adaptation to recurrent language models in "xLSTM: Extended
Long Short-Term Memory" (Beck et al.): strings of random length, one answer, read at the last token.
"""
