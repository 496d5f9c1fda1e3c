"""Dense linear RNNs as fixed points of diagonal ones (Movahedi et al.)."""
