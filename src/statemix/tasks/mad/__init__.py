"""The synthetic tasks of MAD.

Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures". Laws and worked
examples follow the generators of mad-lab, whose random streams are not reproduced.
"""
